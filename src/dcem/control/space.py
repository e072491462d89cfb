"""What a controller searches over: action sequences, their knots, or a decoder's latent space."""

from typing import Any

import torch
from torch import Tensor

from dcem.control.knots import Knots
from dcem.distributions.box import Box
from dcem.solvers import Solver


class ActionSpace:
    """Sequences of actions in a box, one per step or by knots, flattened into one point."""

    def __init__(self, horizon: int, low: Tensor, high: Tensor, knots: Knots | None) -> None:
        self.low, self.high, self.knots = low, high, knots
        self.shape = (horizon, len(low))  # of what users pass
        self.steps = horizon if knots is None else knots.count
        self.dim = self.steps * len(low)
        self.clamps = knots is not None and knots.kind == "cubic"
        if knots is not None:
            spline = knots.weights(horizon), knots.inverse(horizon), knots.later(horizon)
            self._weights, self._inverse, self._later = (matrix.to(low) for matrix in spline)

    def inside(self, solver: Any) -> Any:
        """The solver within the box."""
        solver = solver.within(Box(self.low, self.high), self.steps)
        self.clamps |= solver.box is None
        return solver

    def actions(self, x: Tensor, state: Any) -> Tensor:
        """The actions (..., H, m) that points x (..., n) stand for."""
        actions = x.unflatten(-1, (self.steps, -1))
        if self.knots is not None:
            actions = self._weights.to(x) @ actions
        return self._clamp(actions) if self.clamps else actions

    def points(self, actions: Tensor) -> Tensor:
        """Points (..., n) for actions (..., H, m): the nearest in the box, and of knots in least squares."""
        actions = self._clamp(actions)
        if self.knots is not None:
            actions = self._clamp(self._inverse.to(actions) @ actions)
        return actions.flatten(-2)

    def centre(self, batch: torch.Size, like: Tensor) -> Tensor:
        """The default starting point, (*B, n)."""
        low, high = self.low.to(like), self.high.to(like)
        centre = torch.where(low.isfinite() & high.isfinite(), low / 2 + high / 2, 0.0).clamp(low, high)
        return centre.repeat(self.steps).expand(*batch, -1)

    def later(self, x: Tensor, end: Tensor | None = None) -> Tensor:
        """Points x (*B, n) one step later: with the last action again, or that of `end`."""
        m = len(self.low)
        if self.knots is not None:
            moved = (self._later.to(x) @ x.unflatten(-1, (self.steps, m))).flatten(-2)
            return moved if end is None else torch.cat([moved[..., :-m], end[..., -m:]], dim=-1)
        return torch.cat([x[..., m:], (x if end is None else end)[..., -m:]], dim=-1)

    def _clamp(self, actions: Tensor) -> Tensor:
        return actions.clamp(self.low.to(actions), self.high.to(actions))


class LatentSpace:
    """The latent space of a decoder, which maps z to action sequences."""

    def __init__(self, decoder: Any) -> None:
        self.actions = decoder
        self.dim: int = decoder.latent_dim
        self.shape = (self.dim,)

    def inside(self, solver: Solver) -> Solver:
        return solver

    def points(self, z: Tensor) -> Tensor:
        return z

    def centre(self, batch: torch.Size, like: Tensor) -> Tensor:
        return like.new_zeros(*batch, self.dim)

    def later(self, z: Tensor, end: Tensor | None = None) -> Tensor:
        """Unchanged: there is no way to tell which z decodes to the same actions a step later."""
        return z

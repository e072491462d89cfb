"""Gradient descent, unrolled: the baseline that DCEM is compared with."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Generator, Tensor

from dcem._checks import check_count
from dcem._graph import with_gradient
from dcem.distributions.box import Bounds, Box, first_mean, merged
from dcem.distributions.gaussian import check_sigma, first_sigma
from dcem.noise import Normal
from dcem.solvers.base import Evaluate, Record, Solver
from dcem.solvers.schedule import Schedule, at, check_schedule, is_constant, rule


class DescentState(NamedTuple):
    x: Tensor  # (*B, N, n)
    velocity: Tensor  # (*B, N, n)
    values: Tensor  # (*B, N), at the points before the last step


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientDescent(Solver):
    """x ← x - learning_rate · velocity,  velocity ← momentum · velocity + ∇f(x), projected to the bounds.

    The gradient steps are part of the graph, so gradients reach whatever f depends on.

    Args:
        n_iters: steps.
        learning_rate: may be a tensor that requires gradients, or a schedule: a function of the iteration, or
            a sequence of values, one for each.
        momentum: 0 <= momentum < 1.
        n_samples: starting points: x0 itself, then x0 + sigma·ε. The one whose value is lowest at the last
            evaluation is the result.
        sigma: spread of the further starting points; a number, or a tensor that broadcasts against (*B, n).
            None: half of the extent of the bounds, 1 where there are none.
        bounds: (low, high) of the domain, numbers or tensors per dimension; None for all of R^n.
    """

    State = DescentState

    n_iters: int = 10
    learning_rate: Schedule = 0.1
    momentum: float = 0.0
    n_samples: int = 1
    sigma: float | Tensor | None = None
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        check_count("GradientDescent: n_iters", self.n_iters)
        check_count("GradientDescent: n_samples", self.n_samples)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"GradientDescent: momentum must lie in [0, 1), got {self.momentum}")
        name = "GradientDescent: learning_rate"
        check_schedule(name, self.learning_rate, self.n_iters, rule(name, "be positive", lambda x: x > 0))
        check_sigma(self.sigma, "GradientDescent")
        object.__setattr__(self, "_box", Box.of(self.bounds, "clamp", "GradientDescent"))

    @property
    def box(self) -> Box | None:
        return self.__dict__["_box"]

    def within(self, box: Box, steps: int = 1) -> Self:
        tiled = merged(self.box, box.tiled(steps), "clamp", "GradientDescent")
        return replace(self, bounds=(tiled.low, tiled.high))

    @property
    def stationary(self) -> bool:
        return type(self) is GradientDescent and is_constant(self)

    def init(self, x0: Tensor) -> DescentState:
        x = first_mean(self.box, x0, "GradientDescent").unsqueeze(-2)
        return DescentState(x, torch.zeros_like(x), x.new_full(x.shape[:-1], torch.inf))

    def resume(self, state: DescentState, f: Callable[[Tensor], Tensor]) -> DescentState:
        if state.x.shape[-2] != self.n_samples:
            raise ValueError(
                f"minimize: x0 must be a state of n_samples = {self.n_samples} points, "
                f"got one of {state.x.shape[-2]}"
            )
        return state._replace(values=torch.full_like(state.values, torch.inf))

    def draw(self, x0: Tensor, t: int, generator: Generator | None) -> Tensor | None:
        if t > 0 or self.n_samples == 1:
            return None
        *batch, n = x0.shape
        return Normal().draw((*batch, self.n_samples - 1, n), x0, generator)

    def step(
        self, evaluate: Evaluate, state: DescentState, noise: Tensor | None, t: int
    ) -> tuple[DescentState, Record]:
        x, velocity = state.x, state.velocity
        if noise is not None and x.shape[-2] == 1:  # a continued solve already has its starting points
            sigma = first_sigma(self.sigma, self.box, x.squeeze(-2), "GradientDescent").unsqueeze(-2)
            x = self._inside(torch.cat([x, x + sigma * noise], dim=-2))
            velocity = torch.zeros_like(x)
        values, gradient = with_gradient(lambda x: evaluate(x, None), x, "GradientDescent")
        velocity = self.momentum * velocity + gradient
        new = DescentState(self._inside(x - at(self.learning_rate, t) * velocity), velocity, values)
        return new, Record(t, x, values, None, self.result(new), None)

    def result(self, state: DescentState) -> Tensor:
        if state.x.shape[-2] == 1:
            return state.x.squeeze(-2)
        best = torch.where(state.values.isfinite(), state.values, torch.inf).argmin(-1)
        index = best[..., None, None].expand(*best.shape, 1, state.x.shape[-1])
        return state.x.gather(-2, index).squeeze(-2)

    def had_values(self, state: DescentState) -> Tensor:
        return state.values.isfinite().any(-1)

    def softness(self, t: int) -> None:
        return None

    def _inside(self, x: Tensor) -> Tensor:
        return x if self.box is None else self.box.clamp(x)

"""CMA-ES that restarts with twice the samples when it is stuck, independently for each row of a batch."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dcem._checks import check_count
from dcem.solvers.cmaes import CMAES
from dcem.solvers.sampling import SamplingState, in_rows
from dcem.topk.standardize import resolved


class Population(NamedTuple):
    """The samples collected for each row's next update, the latest last."""

    first: Any  # the distribution to restart from
    batches: Tensor  # (*B,), batches of N samples per update: 1, 2, 4, …
    gathered: Tensor  # (*B,), batches so far
    u: Tensor | None = None  # (*B, 2^restarts N, n)
    values: Tensor | None = None  # (*B, 2^restarts N)


@dataclass(frozen=True, kw_only=True, eq=False)
class IPOP(CMAES):
    """`CMAES` with restarts and growing populations (Auger and Hansen, 2005), for objectives of many minima.

    A row whose values differ only by rounding has converged. It restarts from its initial point, with twice
    the samples per update. All rows stay in one batch: an iteration has N samples for each row, and a row
    that needs 2 N samples takes two iterations per update. The solution is the best of all samples.

    Args:
        restarts: how often a row may start again.

    >>> wavy = lambda x: (x.square() + 2 * (1 - torch.cos(6 * x))).sum(-1)
    >>> x = minimize(wavy, IPOP(n_iters=500), torch.full((4,), 2.0)).x
    """

    restarts: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("IPOP: restarts", self.restarts)
        if self.stop_below is not None:
            raise ValueError(f"IPOP: stop_below must be left out, as rows start again, got {self.stop_below}")
        object.__setattr__(self, "returns", "best")

    def init(self, x0: Tensor) -> SamplingState:
        state = super().init(x0)
        count = torch.zeros(x0.shape[:-1], dtype=torch.int64, device=x0.device)
        return state._replace(own=Population(state.phi, count + 1, count))

    def refit(self, state: SamplingState, u: Tensor, values: Tensor, t: int) -> tuple[SamplingState, Tensor]:
        own = self._with(state.own, u, values)
        assert own.u is not None and own.values is not None
        age = torch.arange(own.values.shape[-1], device=u.device).flip(-1) // values.shape[-1]
        # Samples used by an earlier update no longer have a value, so they get no weight.
        current = torch.where(age < own.gathered.unsqueeze(-1), own.values, torch.nan)
        fitted, weights = super().refit(state, own.u, current, t)
        complete = own.gathered == own.batches
        stuck = complete & ~resolved(current).squeeze(-1) & (own.batches < 2**self.restarts)
        phi = in_rows(stuck, own.first, in_rows(complete, fitted.phi, state.phi))
        batches = torch.where(stuck, 2 * own.batches, own.batches)
        own = own._replace(batches=batches, gathered=torch.where(complete, 0, own.gathered))
        return state._replace(phi=phi, own=own), weights[..., -values.shape[-1] :]

    def _with(self, own: Population, u: Tensor, values: Tensor) -> Population:
        """Add a batch, replacing the oldest."""
        old_u, old_values = own.u, own.values
        if old_u is None or old_values is None:
            *batch, n_samples, n = u.shape
            size = n_samples * 2**self.restarts
            old_u, old_values = u.new_zeros(*batch, size, n), u.new_full((*batch, size), torch.nan)
        return own._replace(
            gathered=own.gathered + 1,
            u=torch.cat([old_u[..., u.shape[-2] :, :], u], dim=-2),
            values=torch.cat([old_values[..., u.shape[-2] :], values], dim=-1),
        )

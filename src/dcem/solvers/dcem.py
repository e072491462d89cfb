"""The differentiable cross-entropy method (Algorithm 1), and at τ = 0 the cross-entropy method."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dcem._checks import can_look, holds
from dcem._graph import zero_with_graph
from dcem.solvers.sampling import SamplingSolver
from dcem.solvers.schedule import Schedule, at, over_rows
from dcem.topk.lml import soft_topk


@dataclass(frozen=True, kw_only=True, eq=False)
class DCEM(SamplingSolver):
    """Sample N points, refit the distribution to the k best of them by a soft top-k, T times.

    w = lml(-v, k, tau) for the (normalised) values v, then φ by weighted maximum likelihood. See
    `SamplingSolver` for the settings not listed here.

    Args:
        n_elite: k, how many samples count as elite; may be fractional.
        tau: temperature of the soft top-k, >= 0; the number 0 is vanilla CEM. A tensor (a scalar, or one
            value a row) may require gradients.

    Both may be schedules: a function of the iteration t = 0, ..., T-1, or a sequence of T values.

    A temperature so low that hardly a sample lies between elite and not has a derivative that is noise: zero
    almost always, and else huge. Gradients are then those of the lowest temperature that has a useful one
    (`lowest_smooth`); the forward pass stays as it is.

    >>> solver = DCEM(n_samples=200, n_elite=20, n_iters=10, tau=lambda t: 0.8**t)
    """

    n_elite: Schedule = 10
    tau: Schedule = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, schedule in (("n_elite", self.n_elite), ("tau", self.tau)):
            if isinstance(schedule, Sequence) and len(schedule) != self.n_iters:
                raise ValueError(
                    f"DCEM: {name} as a sequence needs one value an iteration ({self.n_iters}), "
                    f"got {len(schedule)}"
                )
            for t in range(self.n_iters if isinstance(schedule, Sequence) else 1):
                if not callable(schedule):
                    self._check(name, at(schedule, t))

    def _check(self, name: str, value: float | Tensor) -> None:
        learned = isinstance(value, Tensor)  # then it must be soft: the hard top-k passes no gradient
        if name == "tau" and not holds(value, lambda x: x > 0 if learned else x >= 0):
            rule = "> 0 where it is a tensor" if learned else ">= 0"
            raise ValueError(f"DCEM: tau must be {rule}, got {torch.as_tensor(value).min().item()}")
        if name == "n_elite" and not holds(value, lambda x: (x > 0) & (x <= self.n_samples)):
            raise ValueError(
                f"DCEM: n_elite must satisfy 0 < n_elite <= n_samples = {self.n_samples}, "
                f"got {torch.as_tensor(value).tolist()}"
            )

    def weights(self, values: Tensor, t: int) -> Tensor:
        k, tau = self._at(t, values)
        weights = self._soft_topk(values, k, tau)
        if not torch.is_grad_enabled() or not values.requires_grad or not weights.requires_grad:
            return weights
        warmer = self._warm_enough(values, k, tau)
        if warmer is tau:
            return weights
        return weights.detach() + zero_with_graph(self._soft_topk(values, k, warmer))

    def slope(self, values: Tensor, t: int) -> Tensor:
        k, tau = self._at(t, values)
        weights = self._soft_topk(values, k, self._warm_enough(values, k, tau))
        return weights * (1 - weights)

    def _soft_topk(self, values: Tensor, k: float | Tensor, tau: float | Tensor) -> Tensor:
        return soft_topk(-values, k, tau, self.normalize, finite_only=True)

    def _at(self, t: int, values: Tensor) -> tuple[float | Tensor, float | Tensor]:
        """k and τ of iteration t, shaped to broadcast against the values."""
        k, tau = at(self.n_elite, t), at(self.tau, t)
        if callable(self.n_elite):
            self._check("n_elite", k)
        if callable(self.tau):
            self._check("tau", tau)
        return over_rows(k, "DCEM: n_elite", values), over_rows(tau, "DCEM: tau", values)

    def _warm_enough(self, values: Tensor, k: float | Tensor, tau: float | Tensor) -> float | Tensor:
        """τ, or where it is lower the lowest temperature whose derivative is more than noise."""
        if not isinstance(tau, Tensor) and tau == 0:
            return tau
        least: float | Tensor = lowest_smooth(values.shape[-1], k)
        if not self.normalize:
            finite = torch.where(values.isfinite(), values.detach(), torch.nan)
            mean = finite.nanmean(-1, keepdim=True)
            least = least * (finite - mean).square().nanmean(-1, keepdim=True).sqrt()
        if not isinstance(tau, Tensor) and not isinstance(least, Tensor):
            return tau if tau >= least else least
        warmer = torch.maximum(torch.as_tensor(tau).to(values), torch.as_tensor(least).to(values))
        return tau if can_look(warmer) and bool((warmer == tau).all()) else warmer


def lowest_smooth(n: int, k: float | Tensor) -> float | Tensor:
    """The temperature, in standard deviations of the values, at which about one of n samples is undecided.

    Σ y (1 − y) ≈ τ · n · density at the threshold, and a logistic distribution of unit variance has density
    (π / √3) p (1 − p) at its quantile p = k / n.
    """
    return math.sqrt(3) / math.pi / (k * (1 - k / n) + 1e-9)

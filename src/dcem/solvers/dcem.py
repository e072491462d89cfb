"""The differentiable cross-entropy method (Algorithm 1), and at τ = 0 the cross-entropy method."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dcem.solvers.sampling import SamplingSolver, Schedule, at, over_rows
from dcem.topk.lml import soft_topk


@dataclass(frozen=True, kw_only=True)
class DCEM(SamplingSolver):
    """Sample N points, refit the distribution to the k best of them by a soft top-k, T times.

    w = lml(-v, k, tau) for the (normalised) values v, then φ by weighted maximum likelihood. See
    `SamplingSolver` for the settings not listed here.

    Args:
        n_elite: k, how many samples count as elite; may be fractional.
        tau: temperature of the soft top-k, >= 0; the number 0 is vanilla CEM. A tensor (a scalar, or one
            value a row) may require gradients.

    Both may be schedules: a function of the iteration t = 0, ..., T-1, or a sequence of T values.

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
                if not callable(schedule) or isinstance(schedule, Tensor):
                    self._check(name, at(schedule, t))

    def _check(self, name: str, value: float | Tensor) -> None:
        if isinstance(value, Tensor) and value.device.type != "cpu":
            return  # its values are not looked at, to not stall the device
        learned = isinstance(value, Tensor)  # then it must be soft: the hard top-k passes no gradient
        value = torch.as_tensor(value)
        if name == "tau" and not (value > 0 if learned else value >= 0).all():
            rule = "> 0 where it is a tensor" if learned else ">= 0"
            raise ValueError(f"DCEM: tau must be {rule}, got {value.min().item()}")
        if name == "n_elite" and not ((value > 0) & (value <= self.n_samples)).all():
            raise ValueError(
                f"DCEM: n_elite must satisfy 0 < n_elite <= n_samples = {self.n_samples}, "
                f"got {value.tolist()}"
            )

    def weights(self, values: Tensor, t: int) -> Tensor:
        k, tau = at(self.n_elite, t), at(self.tau, t)
        if callable(self.n_elite):
            self._check("n_elite", k)
        if callable(self.tau):
            self._check("tau", tau)
        k, tau = over_rows(k, "DCEM: n_elite", values), over_rows(tau, "DCEM: tau", values)
        return soft_topk(-values, k, tau, self.normalize, finite_only=True)

    def slope(self, weights: Tensor) -> Tensor:
        return weights * (1 - weights)

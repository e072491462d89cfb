"""Model-predictive path integral control: softmax weights in place of the top-k."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dcem._checks import all_finite, can_look, check
from dcem.solvers.elites import scaled
from dcem.solvers.sampling import SamplingSolver
from dcem.solvers.schedule import is_constant


@dataclass(frozen=True, kw_only=True, eq=False)
class MPPI(SamplingSolver):
    """Move the mean to the softmax-weighted mean of N samples, T times; the covariance stays as it is.

    w = softmax(-v / temperature) for the (normalised) values v. See `SamplingSolver` for the other settings.

    Args:
        temperature: λ > 0; the smaller, the greedier. A scalar tensor may require gradients.
        adapt_sigma: refit the standard deviation too.
    """

    temperature: float | Tensor = 1.0
    adapt_sigma: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        temperature = self.temperature
        if isinstance(temperature, Tensor) and temperature.ndim > 0:
            raise ValueError(
                f"MPPI: temperature must be a number or a scalar tensor, got shape {tuple(temperature.shape)}"
            )
        check("MPPI: temperature", temperature, "be positive", lambda x: x > 0)

    @property
    def stationary(self) -> bool:
        return type(self) is MPPI and is_constant(self)

    def weights(self, values: Tensor, t: int) -> Tensor:
        if can_look(values) and all_finite(values):  # the same in fewer operations
            v = scaled(values, self.normalize) if self.normalize else values
            return (-v / self.temperature).softmax(-1)
        good = values.isfinite()
        v = torch.where(good, scaled(values, self.normalize), 0.0)
        scores = torch.where(good, -v / self.temperature, -torch.inf)
        return torch.where(good.any(-1, keepdim=True), scores, 0.0).softmax(-1) * good

    def slope(self, values: Tensor, t: int) -> Tensor:
        return self.weights(values, t)

    def softness(self, t: int) -> float | Tensor:
        return self.temperature

    def fit(self, phi: Any, u: Tensor, weights: Tensor) -> Any:
        new = super().fit(phi, u, weights)
        return new if self.adapt_sigma else self.distribution.recentre(phi, new.mean)

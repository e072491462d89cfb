"""The Gaussian with a diagonal covariance: the paper's sampling distribution."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from dcem.distributions.box import Boundary, Bounds, Box, first_mean
from dcem.distributions.moments import weighted_moments


class GaussianState(NamedTuple):
    mean: Tensor  # (*B, n)
    sigma: Tensor  # (*B, n)


@dataclass(frozen=True)
class Gaussian:
    """N(μ, diag σ²), refitted by the weighted mean and standard deviation (Proposition 3).

    Args:
        sigma: the first standard deviation; a number, or a tensor that broadcasts against (*B, n) and may
            require gradients.
        bounds: (low, high) of the domain, numbers or tensors per dimension; None for all of R^n.
        boundary: how the bounds are kept: 'clamp' (the paper's; cheapest), 'truncate' or 'squash' (gradients
            stay alive where the optimum lies on or outside the box). See `dcem.distributions.box.Box`.
    """

    sigma: float | Tensor = 1.0
    bounds: Bounds | None = None
    boundary: Boundary = "clamp"
    box: Box | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_sigma(self.sigma, "Gaussian")
        object.__setattr__(self, "box", Box.of(self.bounds, self.boundary, "Gaussian"))

    def init(self, x0: Tensor) -> GaussianState:
        mean = first_mean(self.box, x0, "Gaussian")
        return GaussianState(mean, expand_sigma(self.sigma, mean, "Gaussian"))

    def sample(self, phi: GaussianState, noise: Tensor) -> Tensor:
        mean, sigma = phi.mean.unsqueeze(-2), phi.sigma.unsqueeze(-2)
        if self.box and self.box.boundary == "truncate":
            return self.box.truncated_normal(mean, sigma, noise)
        u = torch.addcmul(mean, sigma, noise)
        return self.box.clamp(u) if self.box and self.box.boundary == "clamp" else u

    def decode(self, u: Tensor) -> Tensor:
        return self.box.squash(u) if self.box and self.box.boundary == "squash" else u

    def fit(self, u: Tensor, w: Tensor, sigma_min: float) -> GaussianState:
        return GaussianState(*weighted_moments(u, w, sigma_min))


def check_sigma(sigma: float | Tensor, name: str) -> None:
    if isinstance(sigma, Tensor) and sigma.device.type != "cpu":
        return  # its values are not looked at, to not stall the device
    if not (torch.as_tensor(sigma) > 0).all():
        raise ValueError(f"{name}: sigma must be positive, got {sigma}")


def expand_sigma(sigma: float | Tensor, mean: Tensor, name: str) -> Tensor:
    if not isinstance(sigma, Tensor):
        return torch.full_like(mean, sigma)
    try:
        return sigma.to(mean).expand_as(mean)
    except RuntimeError:
        raise ValueError(
            f"{name}: sigma must broadcast against x0 of shape {tuple(mean.shape)}, got {tuple(sigma.shape)}"
        ) from None

"""The Gaussian with a diagonal covariance: the paper's sampling distribution."""

import math
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from dcem._checks import check
from dcem.distributions.base import Distribution
from dcem.distributions.box import Boundary, Bounds, Box, first_mean, merged
from dcem.distributions.moments import rank_mu, weighted_moments
from dcem.distributions.samples import drawn_by_kernel

Estimator = Literal["rank-mu", "likelihood"]


class GaussianState(NamedTuple):
    mean: Tensor  # (*B, n)
    sigma: Tensor  # (*B, n)


class AnyGaussian(Distribution):
    """What `Gaussian` and `FullGaussian` share: their settings."""

    sigma: float | Tensor | None
    bounds: Bounds | None
    boundary: Boundary
    estimator: Estimator
    n_iters: int | None

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_sigma(self.sigma, name)
        if self.estimator not in ("rank-mu", "likelihood"):
            raise ValueError(f"{name}: estimator must be 'rank-mu' or 'likelihood', got {self.estimator!r}")
        object.__setattr__(self, "box", Box.of(self.bounds, self.boundary, name))

    def first(self, x0: Tensor) -> tuple[Tensor, Tensor]:
        """The first mean and standard deviation, each (*B, n)."""
        name = type(self).__name__
        mean = first_mean(self.box, x0, name)
        return mean, first_sigma(self.sigma, self.box, mean, name)

    def within(self, box: Box, steps: int = 1) -> Self:
        tiled = merged(self.box, box.tiled(steps), self.boundary, type(self).__name__)
        sigma, size = self.sigma, box.low.shape if isinstance(box.low, Tensor) else None
        if isinstance(sigma, Tensor) and sigma.ndim == 1 and sigma.shape == size:
            sigma = sigma.repeat(steps)
        return replace(self, bounds=(tiled.low, tiled.high), sigma=sigma)  # type: ignore[type-var]

    def paced(self, n_iters: int) -> Self:
        return replace(self, n_iters=n_iters)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class Gaussian(AnyGaussian):
    """N(m, diag σ²), refitted to weighted samples.

    The mean becomes that of the samples u with their weights p, Σp = 1. The variance, by the estimator:

        rank-mu      (1 − c) σ² + c Σ p (u − m)², around the mean m *before* the update, as in CMA-ES: it does
                     not shrink while the mean is moving
        likelihood   Σ p (u − m')², around the mean m' after it: the paper's maximum likelihood
                     (Proposition 3), which shrinks even while the mean is moving

    The rate c grows with the effective number of samples, 1 / Σp², falls with the dimension, and is at least
    what a search of so many iterations needs to finish.

    The standard deviation has a floor near the resolution of the dtype: below it, values and gradients would
    differ only by rounding.

    Args:
        sigma: the initial standard deviation; a number, or a tensor that broadcasts against (*B, n) and may
            require gradients. None: half of the extent of the bounds, or 1 without bounds.
        bounds: (low, high) of the domain, numbers or tensors per dimension; None for all of R^n.
        boundary: how bounds are enforced: 'clamp' (as in the paper; cheapest), 'truncate' or 'squash'
            (gradients stay useful if the optimum lies on or outside the bounds). See
            `dcem.distributions.box.Box`.
        estimator: 'rank-mu' or 'likelihood', see above.
        n_iters: number of iterations of the search, for the rate; set by the solver. None: few.
    """

    sigma: float | Tensor | None = None
    bounds: Bounds | None = None
    boundary: Boundary = "clamp"
    estimator: Estimator = "rank-mu"
    n_iters: int | None = None
    box: Box | None = field(init=False, repr=False)

    def init(self, x0: Tensor) -> GaussianState:
        return GaussianState(*self.first(x0))

    def sample(self, phi: GaussianState, noise: Tensor) -> Tensor:
        mean, sigma = phi.mean.unsqueeze(-2), phi.sigma.unsqueeze(-2)
        if self.box and self.box.boundary == "truncate":
            return self.box.truncated_normal(mean, sigma, noise)
        u = torch.addcmul(mean, sigma, noise)
        return self.box.clamp(u) if self.box and self.box.boundary == "clamp" else u

    def draw(self, phi: GaussianState, noise: Tensor) -> tuple[Tensor, Tensor]:
        found = None
        if type(self) is Gaussian and (self.box is None or self.box.boundary == "clamp"):
            found = drawn_by_kernel(phi.mean, phi.sigma, noise, self.box)
        return super().draw(phi, noise) if found is None else found

    def fit(self, phi: GaussianState, u: Tensor, w: Tensor, sigma_min: float) -> GaussianState:
        last_mean, last_sigma, slowest, least, close = self.estimate(phi, u, sigma_min)
        if last_mean is None or last_sigma is None:
            return GaussianState(*weighted_moments(u, w, least, close))
        return GaussianState(*rank_mu(u, w, (last_mean, last_sigma), slowest, least, close))

    def estimate(
        self, phi: GaussianState, u: Tensor, sigma_min: float
    ) -> tuple[Tensor | None, Tensor | None, float, float | Tensor, float]:
        """How `fit` computes moments: the last mean and σ if used, and further arguments of `rank_mu`."""
        least, close = least_variance(self.sigma, self.box, u, sigma_min), near(u)
        if self.estimator == "likelihood":
            return None, None, 1.0, least, close
        slowest = min(1.0, 12 * math.sqrt(u.shape[-1]) / (self.n_iters or 1))
        return phi.mean, phi.sigma, slowest, least, close


def check_sigma(sigma: float | Tensor | None, name: str) -> None:
    if not isinstance(sigma, Real | Tensor | nn.Module | None):
        raise TypeError(f"{name}: sigma must be a number or a tensor, got {sigma!r}")
    if sigma is not None:
        check(f"{name}: sigma", sigma, "be positive", lambda x: x > 0)


def first_sigma(sigma: float | Tensor | None, box: Box | None, mean: Tensor, name: str) -> Tensor:
    """The first standard deviation, shaped as mean (*B, n)."""
    if sigma is None:
        return torch.ones_like(mean) if box is None else box.half_width(mean)
    if not isinstance(sigma, Tensor):
        return torch.full_like(mean, sigma)
    try:
        return sigma.to(mean).expand_as(mean)
    except RuntimeError:
        raise ValueError(
            f"{name}: sigma must broadcast against x0 of shape {tuple(mean.shape)}, got {tuple(sigma.shape)}"
        ) from None


def least_variance(
    sigma: float | Tensor | None, box: Box | None, u: Tensor, given: float, digits: float = 2 / 3
) -> float | Tensor:
    """A floor for the variance: ``given``², or (eps^digits of the first spread)² where that is more.

    Around its minimum, an objective resolves steps of about √eps. The default is well below that, and still
    far enough above rounding for the samples to differ.
    """
    if sigma is None:
        sigma = _half_width(box, u)
    info = torch.finfo(u.dtype)
    share = info.eps**digits
    if isinstance(sigma, Tensor):
        return (share * sigma.detach().to(u)).square().clamp_min(max(given**2, info.tiny))
    return max(given**2, (share * sigma) ** 2, info.tiny)


def _half_width(box: Box | None, u: Tensor) -> float | Tensor:
    """As `first_sigma` without a sigma: a number where the bounds are numbers, which launches nothing."""
    if box is None:
        return 1.0
    if isinstance(box.low, Tensor) or isinstance(box.high, Tensor):
        return box.half_width(u[..., 0, :])
    half = box.high / 2 - box.low / 2
    return half if math.isfinite(half) else 1.0


def near(u: Tensor) -> float:
    """A floor for the spread relative to the mean: closer samples are equal up to rounding, or nearly so."""
    return 64 * torch.finfo(u.dtype).eps

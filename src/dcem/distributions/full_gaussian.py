"""The Gaussian with a full covariance, by its Cholesky factor."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from dcem.distributions.base import over_batch
from dcem.distributions.box import Boundary, Bounds, Box
from dcem.distributions.gaussian import AnyGaussian, Estimator, least_variance, near
from dcem.distributions.moments import effective_samples, rank_mu_rate


class FullGaussianState(NamedTuple):
    mean: Tensor  # (*B, n)
    scale_tril: Tensor  # (*B, n, n), the covariance is L Lᵀ

    @property
    def sigma(self) -> Tensor:
        """Standard deviation of every dimension, (*B, n)."""
        return torch.linalg.vector_norm(self.scale_tril, dim=-1)


@dataclass(frozen=True, eq=False)
class FullGaussian(AnyGaussian):
    """N(m, L Lᵀ), with a full covariance for correlated dimensions. For tens of dimensions: a refit costs n³.

    The covariance is refitted to weighted samples as the variance of a `Gaussian` is: by 'rank-mu' to
    (1 − c) L Lᵀ + c Σ p (u − m)(u − m)ᵀ, with the mean m before the update.

    Args:
        sigma: the initial standard deviation (the initial covariance is diagonal), as for `Gaussian`.
        bounds: (low, high), as for `Gaussian`.
        boundary: 'clamp' or 'squash'; a truncated correlated Gaussian has no closed-form sampler.
        jitter: added to the diagonal of a maximum-likelihood covariance, relative to its mean: with fewer
            elites than dimensions it would be singular. At least the resolution of the dtype.
        estimator: 'rank-mu' or 'likelihood', as for `Gaussian`.
        n_iters: number of iterations of the search, as for `Gaussian`.
    """

    sigma: float | Tensor | None = None
    bounds: Bounds | None = None
    boundary: Boundary = "clamp"
    jitter: float = 1e-6
    estimator: Estimator = "rank-mu"
    n_iters: int | None = None
    box: Box | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.boundary == "truncate":
            raise ValueError("FullGaussian: boundary must be 'clamp' or 'squash', got 'truncate'")
        if not self.jitter > 0:
            raise ValueError(f"FullGaussian: jitter must be positive, got {self.jitter}")

    def init(self, x0: Tensor) -> FullGaussianState:
        mean, sigma = self.first(x0)
        return FullGaussianState(mean, torch.diag_embed(sigma))

    def sample(self, phi: FullGaussianState, noise: Tensor) -> Tensor:
        u = phi.mean.unsqueeze(-2) + noise @ phi.scale_tril.mT
        return self.box.clamp(u) if self.box and self.box.boundary == "clamp" else u

    def fit(self, phi: FullGaussianState, u: Tensor, w: Tensor, sigma_min: float) -> FullGaussianState:
        likelihood, n = self.estimator == "likelihood", u.shape[-1]
        p = w / w.sum(-1, keepdim=True)
        mean = p.unsqueeze(-2) @ u
        d = u - (mean if likelihood else phi.mean.unsqueeze(-2))
        covariance = (d * p.unsqueeze(-1)).mT @ d
        if not likelihood:
            last = phi.scale_tril @ phi.scale_tril.mT
            covariance = torch.lerp(last, covariance, self._rate(w, n).unsqueeze(-1))
        mean = mean.squeeze(-2)
        if u.dtype in (torch.float16, torch.bfloat16):  # these have no Cholesky factorisation
            covariance = covariance.float()
        diagonal = covariance.diagonal(dim1=-2, dim2=-1)
        info = torch.finfo(covariance.dtype)
        # Rounding perturbs a low-rank covariance by about eps times its trace: without a floor above that, it
        # could become indefinite.
        jitter = max(self.jitter if likelihood else 0.0, 4 * n * info.eps)
        least = (near(u) * mean.detach()).square() + least_variance(self.sigma, self.box, u, sigma_min)
        floor = jitter * diagonal.mean(-1, keepdim=True) + least
        covariance = covariance + torch.diag_embed(floor.to(covariance.dtype))
        # cholesky_ex does not wait for the device to report failures; the floor rules them out.
        return FullGaussianState(mean, torch.linalg.cholesky_ex(covariance).L.to(u.dtype))

    def widen(self, phi: FullGaussianState, factor: float | Tensor) -> FullGaussianState:
        return phi._replace(scale_tril=phi.scale_tril * over_batch(factor, phi.scale_tril, phi.mean.ndim - 1))

    def _rate(self, w: Tensor, n: int) -> Tensor:
        """c, (*B, 1). Higher in a short search, but at most μ / (μ + n), so the covariance keeps its rank.

        A variance falls by about c / 2 per iteration: with c = 46 / T a spread can fall by 1e-5 in total.
        A long search uses 0.22 n times the rate of CMA-ES, which controls its step size separately: the best
        factor on BBOB in 5, 10 and 20 dimensions.
        """
        mu = effective_samples(w)
        hurry = (mu / (mu + n)).clamp_max(46 / (self.n_iters or 1))
        return torch.maximum(hurry, 0.22 * n * rank_mu_rate(mu, n)).clamp_max(1.0)

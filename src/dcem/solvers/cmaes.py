"""CMA-ES with recombination weights from soft ranks: differentiable, and at τ = 0 the standard algorithm."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dcem._checks import check_tau, over_rows
from dcem.distributions import FullGaussian, Gaussian
from dcem.distributions.gaussian import least_variance, near
from dcem.distributions.moments import rank_mu_rate
from dcem.solvers.elites import is_hard, scaled, slope_of_elites, soft_elites
from dcem.solvers.sampling import SamplingSolver, SamplingState
from dcem.solvers.schedule import is_constant
from dcem.topk.standardize import Scaling


class Paths(NamedTuple):
    """N(m, diag σ²) and the evolution paths of CMA-ES."""

    mean: Tensor  # (*B, n)
    sigma: Tensor  # (*B, n)
    step_path: Tensor  # (*B, n), steps of the mean in units of the distribution: is it too wide or narrow?
    path: Tensor  # (*B, n), steps of the mean, unscaled: where does it go?
    fading: Tensor  # (*B,), the squared weight that the initial step_path, zero, still has


class FullPaths(NamedTuple):
    """As `Paths`, for N(m, L Lᵀ)."""

    mean: Tensor
    scale_tril: Tensor  # (*B, n, n)
    step_path: Tensor
    path: Tensor
    fading: Tensor

    @property
    def sigma(self) -> Tensor:
        """Standard deviation of every dimension, (*B, n)."""
        return torch.linalg.vector_norm(self.scale_tril, dim=-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class CMAES(SamplingSolver):
    """The covariance matrix adaptation evolution strategy (Hansen, "The CMA Evolution Strategy", 2016).

    As in `DCEM`, the mean moves to a weighted mean of N samples, T times. The weight of a sample depends on
    its rank: w = ln((N + 1) / 2) − ln rank, where N counts the finite values. The better half has positive
    weights and moves the mean. The covariance adapts to the path of the mean (rank-one) and to the samples
    (rank-μ), including the worse half with negative weights (active). Its scale increases while successive
    steps of the mean agree. It needs hundreds of iterations, and then solves problems that DCEM cannot.

    The weight of a rank is a sum of soft top-j weights, w = w_N + Σ_j Δ_j lml(−v, j, tau), where Δ_j is the
    difference between the weights of ranks j and j + 1. So the search is differentiable, by every way of
    `dcem.backward`. At tau = 0 it is the standard algorithm. See `SamplingSolver` for the other settings.

    Args:
        n_samples: N, at least 2; None for the usual 4 + ⌊3 ln n⌋ in n dimensions.
        distribution: `FullGaussian`, or `Gaussian` for the separable variant, whose cost grows with n instead
            of n³: for hundreds of dimensions. It gives the initial standard deviation and the bounds; its
            estimator is not used. With clamped bounds the worse half is left out, and the covariance adapts
            more slowly: give no bounds if f is defined everywhere.
        tau: temperature of the soft ranks, >= 0; the number 0 for hard ones. A tensor (a scalar, or one value
            per row) may require gradients. Derivatives at a low temperature are those of a warmer one, as in
            `DCEM`; here ranks near the first and the last need the highest.

    >>> rosenbrock = lambda x: 100 * (x[..., 1] - x[..., 0] ** 2) ** 2 + (1 - x[..., 0]) ** 2
    >>> minimize(rosenbrock, CMAES(n_iters=150), torch.zeros(2)).x.round(decimals=3)
    tensor([1., 1.])
    """

    n_samples: int | None = None  # type: ignore[assignment]
    distribution: FullGaussian | Gaussian = field(default_factory=FullGaussian)
    tau: float | Tensor = 0.05
    normalize: Scaling = "half"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_samples == 1:
            name = type(self).__name__
            raise ValueError(f"{name}: n_samples must be at least 2, since samples are ranked, got 1")
        if not isinstance(self.distribution, Gaussian | FullGaussian):
            raise TypeError(
                f"CMAES: distribution must be a FullGaussian or a Gaussian, got {self.distribution!r}"
            )
        check_tau("CMAES", self.tau)

    @property
    def stationary(self) -> bool:
        return type(self) is CMAES and is_constant(self)

    def samples(self, n: int) -> int:
        return 4 + int(3 * math.log(n)) if self.n_samples is None else self.n_samples

    def init(self, x0: Tensor) -> SamplingState:
        state = super().init(x0)
        mean, spread = state.phi
        zero, one = torch.zeros_like(mean), mean.new_ones(mean.shape[:-1])
        kind = Paths if isinstance(self.distribution, Gaussian) else FullPaths
        return state._replace(phi=kind(mean, spread, zero, zero, one))

    def weights(self, values: Tensor, t: int) -> Tensor:
        finite = values.isfinite()
        median = ((finite.sum(-1, keepdim=True) + 1).clamp_min(3).to(values) / 2).log()
        if is_hard(self.tau):
            order = torch.where(finite, values, torch.inf).argsort(-1)
            log_rank = torch.zeros_like(values).scatter(-1, order, _log_ranks(values).expand_as(values))
        else:
            log_rank = math.log(values.shape[-1]) - self._over_ranks(soft_elites, values)
        return torch.where(finite, median - log_rank, 0.0)

    def slope(self, values: Tensor, t: int) -> Tensor:
        return self._over_ranks(slope_of_elites, values)

    def softness(self, t: int) -> float | Tensor:
        return self.tau

    def _over_ranks(self, soft: Any, values: Tensor) -> Tensor:
        """Σ_j Δ_j soft(v, j), which at τ = 0 is Σ_{j >= rank} Δ_j: the weight minus that of the last rank."""
        v = scaled(values, self.normalize).unsqueeze(-2)
        v = v.expand(*v.shape[:-2], values.shape[-1] - 1, v.shape[-1])
        j = torch.arange(1, v.shape[-2] + 1, dtype=v.dtype, device=v.device).unsqueeze(-1)
        tau = over_rows(self.tau, "CMAES: tau", values)
        tau = tau.unsqueeze(-1) if isinstance(tau, Tensor) and tau.ndim else tau
        losses = _log_ranks(values).diff().unsqueeze(-1)
        return (losses * soft(v, j, tau, "done" if self.normalize else False)).sum(-2)

    def fit(self, phi: Any, u: Tensor, weights: Tensor) -> Any:
        if u.dtype in (torch.float16, torch.bfloat16):  # these have no Cholesky factorisation
            wide = self.fit(type(phi)(*(part.float() for part in phi)), u.float(), weights.float())
            return type(phi)(*(part.to(u.dtype) for part in wide))
        n, full = u.shape[-1], isinstance(phi, FullPaths)
        tiny = torch.finfo(u.dtype).tiny
        p, q = weights.clamp_min(0.0), (-weights).clamp_min(0.0)
        p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True).clamp_min(tiny)  # q may be zero
        mu, mu_of_worse = (1 / x.square().sum(-1, keepdim=True).clamp_min(tiny) for x in (p, q))
        d = u - phi.mean.unsqueeze(-2)
        z = _whitened(phi, d)
        # Samples are hardly ever this long, but bounds and proposals can put one anywhere: limit its effect.
        longest = (math.sqrt(n) + 3) ** 2
        squared = z.square().sum(-1)
        usual = (longest / squared.clamp_min(longest)).sqrt()
        shift, move = (torch.stack([p, p * usual], -2) @ d).unbind(-2)
        step = ((p * usual).unsqueeze(-2) @ z).squeeze(-2)
        mean = phi.mean + shift

        # Cumulative step-size control: steps that agree make a long path, which widens the distribution.
        c_step = ((mu + 2) / (n + mu + 3)).clamp_max(0.5)
        damping = 1 + c_step + 2 * (((mu - 1) / (n + 1)).clamp_min(1.0).sqrt() - 1)
        step_path = (1 - c_step) * phi.step_path + (c_step * (2 - c_step) * mu).sqrt() * step
        fading = phi.fading * (1 - c_step.squeeze(-1)).square()
        length = torch.linalg.vector_norm(step_path, dim=-1, keepdim=True)
        expected = math.sqrt(2) * math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2))  # of normals
        growth = (c_step / damping * (length / expected - 1)).clamp_max(1.0).exp()

        # While the steps are far too short, hold the path of the mean: else the covariance would explode.
        steady = (length.square() < n * (2 + 4 / (n + 1)) * (1 - fading.unsqueeze(-1))).to(u.dtype)
        c_path = (4 + mu / n) / (n + 4 + 2 * mu / n)
        path = (1 - c_path) * phi.path + steady * (c_path * (2 - c_path) * mu).sqrt() * move

        # Update the covariance, scaled to the new step size, from the path, the better samples and,
        # negatively, the worse ones. These are normalised in length and limited: the matrix stays positive.
        quicker = 1.0 if full else (n + 2) / 3  # a diagonal has fewer numbers to learn
        c_one = quicker * min(1.0, u.shape[-2] / 6) * 2 / ((n + 1.3) ** 2 + mu)
        c_mu = torch.minimum(quicker * rank_mu_rate(mu, n), 1 - c_one)
        against = torch.minimum(1 + c_one / c_mu, (1 - c_one - c_mu) / (n * c_mu))
        against = torch.minimum(against, 1 + 2 * mu_of_worse / (mu + 2)) * q.sum(-1, keepdim=True)
        if self.box is not None and self.box.boundary == "clamp":
            against = torch.zeros_like(against)  # clamped samples are biased, and would inflate the spread
        as_long = n / squared.clamp(torch.finfo(z.dtype).eps, longest)
        signed = (p - against * q * as_long) * usual.square()
        kept = 1 - c_one - c_mu * (1 - against) + (1 - steady) * c_one * c_path * (2 - c_path)
        rates = [rate * growth.square() for rate in (kept, c_one, c_mu)]
        # The floor is only rounding: on a sharp ridge, one direction must become far smaller than others.
        least = least_variance(self.distribution.sigma, self.box, u, self.sigma_min, digits=1.0)
        least = (near(u) * mean.detach()).square() + least
        spread = (_covariance if full else _deviation)(phi, path, d, signed.unsqueeze(-1), rates, least)
        return type(phi)(mean, spread, step_path, growth * path, fading)


def _log_ranks(values: Tensor) -> Tensor:
    """The logarithms of ranks 1 to N, (N,), for values (*B, N)."""
    return torch.arange(1, values.shape[-1] + 1, dtype=values.dtype, device=values.device).log()


def _whitened(phi: Any, d: Tensor) -> Tensor:
    """Steps d (*B, N, n) in units of the distribution."""
    if isinstance(phi, Paths):
        return d / phi.sigma.unsqueeze(-2)
    return torch.linalg.solve_triangular(phi.scale_tril, d.mT, upper=False).mT


def _deviation(phi: Paths, path: Tensor, d: Tensor, p: Tensor, rates: list[Tensor], least: Tensor) -> Tensor:
    """σ' with σ'² = kept σ² + c₁ path² + c_μ Σ p d², and at least `least`."""
    parts = phi.sigma.square(), path.square(), (p * d.square()).sum(-2)
    variance = sum(rate * part for rate, part in zip(rates, parts, strict=True))
    return torch.maximum(torch.as_tensor(variance), least).sqrt()


def _covariance(
    phi: FullPaths, path: Tensor, d: Tensor, p: Tensor, rates: list[Tensor], least: Tensor
) -> Tensor:
    """L' with L' L'ᵀ = kept L Lᵀ + c₁ path pathᵀ + c_μ Σ p d dᵀ, and a little more than `least`."""
    kept, c_one, c_mu = (rate.unsqueeze(-1) for rate in rates)
    last = phi.scale_tril @ phi.scale_tril.mT
    covariance = kept * last + c_one * path.unsqueeze(-1) * path.unsqueeze(-2) + c_mu * ((d * p).mT @ d)
    size = covariance.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    rounding = 4 * path.shape[-1] * torch.finfo(path.dtype).eps * size
    # cholesky_ex does not wait for the device to report failures; this margin rules them out.
    return torch.linalg.cholesky_ex(covariance + torch.diag_embed(least + rounding)).L

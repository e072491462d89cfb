"""Weighted mean and standard deviation: by a kernel, or in torch operations."""

from typing import Any

import torch
from torch import Tensor

from dcem._checks import is_transformed
from dcem._graph import by_formula, partials
from dcem._native import compiles_natively, kernel
from dcem.distributions import moments_native as native

try:
    from dcem.distributions import moments_triton as fused
except ImportError:  # Triton is not installed
    fused = None  # type: ignore[assignment]


Moments = tuple[Tensor, Tensor]  # mean and standard deviation, each (*B, n)


def weighted_moments(u: Tensor, w: Tensor, least: float | Tensor = 0.0, near: float = 0.0) -> Moments:
    """Mean and standard deviation, each (*B, n), of samples u (*B, N, n) with weights w (*B, N) of any sum.

    The variance is at least ``least`` + (near · mean)², and passes no gradient where it would be less.

    >>> weighted_moments(torch.tensor([[0.0], [1.0], [7.0]]), torch.tensor([2.0, 2.0, 0.0]))
    (tensor([0.5000]), tensor([0.5000]))
    """
    # The root's slope is infinite at 0, where all samples are one point: stop just above.
    floor = least if isinstance(least, Tensor) else max(least, torch.finfo(u.dtype).tiny)
    natively = _natively(u, w, None, 1.0, floor, near)
    if natively is not None:
        return natively
    if not isinstance(floor, Tensor) and _use_fused(u, w):
        return fused.moments(u, w, floor, near)
    return _plain(u, w, floor, near) if is_transformed() else _WeightedMoments.apply(u, w, floor, near)


def rank_mu(
    u: Tensor, w: Tensor, last: Moments, slowest: float, least: float | Tensor, near: float
) -> Moments:
    """As `weighted_moments`, with the variance (1 - c) σ² + c Σ p (u - m)² for the last m and σ (*B, n).

    p = w / Σw, and c is that of CMA-ES for a diagonal in n dimensions, at least `slowest` and at most 1.
    """
    natively = _natively(u, w, last, slowest, least, near)
    return _rank_mu(u, w, *last, slowest, least, near) if natively is None else natively


def _rank_mu(
    u: Tensor, w: Tensor, last_mean: Tensor, last_sigma: Tensor, slowest: float, least: Any, near: float
) -> Moments:
    n = u.shape[-1]
    rate = (rank_mu_rate(effective_samples(w), n) * (n + 2) / 3).clamp(slowest, 1.0)
    if _use_fused(u, w):
        mean, sigma = weighted_moments(u, w)
        around_the_last = sigma.square() + (mean - last_mean).square()
    else:  # not through σ, which passes no gradient where one sample has all the weight
        mean, around_the_last = _spread(u, w, last_mean)
    variance = torch.lerp(last_sigma.square(), around_the_last, rate)
    return mean, _deviation(variance, mean, least, near)


def effective_samples(w: Tensor) -> Tensor:
    """μ = (Σw)² / Σw², (*B, 1), for weights w (*B, N): the effective sample size."""
    return w.sum(-1, keepdim=True).square() / w.square().sum(-1, keepdim=True)


def rank_mu_rate(mu: Tensor, n: int) -> Tensor:
    """The share of a covariance in n dimensions that μ samples replace, as in CMA-ES (Hansen, 2016)."""
    return 2 * (mu - 1.75 + 1 / mu) / ((n + 2) ** 2 + mu)


def _natively(
    u: Tensor, w: Tensor, last: Moments | None, slowest: float, floor: float | Tensor, near: float
) -> Moments | None:
    """By the kernel, around the last mean or, without one, the new one; None if it does not apply."""
    if u.numel() == 0 or any(x.shape != (*u.shape[:-2], u.shape[-1]) for x in last or ()):
        return None
    last_mean, last_sigma = last or (None, None)
    least, floors = (0.0, floor) if isinstance(floor, Tensor) else (floor, None)
    inputs = u, w, last_mean, last_sigma, slowest, least, floors, near
    if is_transformed():
        tensors = (x for x in (w, last_mean, last_sigma, floors) if x is not None)
        if not compiles_natively(u) or any(x.dtype != u.dtype for x in tensors):
            return None
        mean, sigma, *_ = torch.ops.dcem.moments(*inputs)
        return mean, sigma
    if kernel("moments", u, w, last_mean, last_sigma, floors) is None:
        return None
    return _NativeMoments.apply(*inputs) if torch.is_grad_enabled() else native.forward(*inputs)[:2]


def _plain(u: Tensor, w: Tensor, floor: float | Tensor, near: float) -> Moments:
    mean, variance = _spread(u, w)
    return mean, _deviation(variance, mean, floor, near)


def _spread(u: Tensor, w: Tensor, centre: Tensor | None = None) -> Moments:
    """The weighted mean, and the variance around a centre (*B, n), or around the mean."""
    p = (w / w.sum(-1, keepdim=True)).unsqueeze(-1)
    mean = (p * u).sum(-2)
    centre = mean if centre is None else centre
    return mean, (p * (u - centre.unsqueeze(-2)).square()).sum(-2)


def _deviation(variance: Tensor, mean: Tensor, floor: float | Tensor, near: float) -> Tensor:
    return torch.maximum(variance, _least(mean.detach(), floor, near)).sqrt()


def _least(mean: Tensor, floor: float | Tensor, near: float) -> Tensor:
    """The least variance, (*B, n)."""
    return (near * mean).square() + floor


def _use_fused(u: Tensor, w: Tensor) -> bool:
    """Does the Triton kernel support this input? It has no gradient."""
    if fused is None or not u.is_cuda or u.dtype != torch.float32 or u.numel() == 0 or is_transformed():
        return False
    return not (torch.is_grad_enabled() and (u.requires_grad or w.requires_grad))


class _WeightedMoments(torch.autograd.Function):
    """With d = u - mean and p = w / Σw:  ∂mean/∂u_i = p_i,  ∂var/∂u_i = 2 p_i d_i,  ∂mean/∂w_i = d_i / Σw,
    ∂var/∂w_i = (d_i² - var) / Σw."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, w: Tensor, floor: float | Tensor, near: float) -> Moments:
        ctx.floor, ctx.near = floor, near
        total = w.sum(-1, keepdim=True)
        p = (w / total).unsqueeze(-1)
        mean = (p * u).sum(-2, keepdim=True)
        d = u - mean
        variance = (p * d).mul_(d).sum(-2)
        mean = mean.squeeze(-2)
        least = _least(mean, floor, near)
        sigma = torch.maximum(variance, least).sqrt_()
        ctx.save_for_backward(u, w, total, p, d, variance <= least, sigma)
        return mean, sigma

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        u, w, total, p, d, at_least, sigma = ctx.saved_tensors
        if by_formula(*grads):
            return partials(_plain, (u, w, ctx.floor, ctx.near), ctx.needs_input_grad, grads)
        gmean, gsigma = grads
        gmean = gmean.unsqueeze(-2)
        twice_gvar = (gsigma / sigma).masked_fill_(at_least, 0.0).unsqueeze(-2)
        slope = torch.addcmul(gmean, d, twice_gvar, value=0.5)
        gu = gw = None
        if ctx.needs_input_grad[0]:
            gu = torch.addcmul(slope, d, twice_gvar, value=0.5).mul_(p)
        if ctx.needs_input_grad[1]:
            gp = slope.mul_(d).sum(-1)
            gw = (gp - (p.squeeze(-1) * gp).sum(-1, keepdim=True)).div_(total)
        return gu, gw, None, None


class _NativeMoments(torch.autograd.Function):
    """One kernel forward and one backward, on the CPU."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Moments:
        output = native.forward(*inputs)
        native.remember(ctx, inputs, output)
        return output[:2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if not by_formula(*grads):
            return native.gradients(ctx, grads, native.backward)
        u, w, last_mean, last_sigma, *_ = ctx.saved_tensors
        slowest, floor, floors, near = ctx.settings
        floor = floor if floors is None else floors
        if last_mean is None:
            return *partials(_plain, (u, w, floor, near), ctx.needs_input_grad, grads), *(None,) * 4
        inputs = u, w, last_mean, last_sigma, slowest, floor, near
        return *partials(_rank_mu, inputs, ctx.needs_input_grad, grads), None

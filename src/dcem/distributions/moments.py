"""Weighted mean and standard deviation, with a backward that makes few passes over the samples."""

from typing import Any

import torch
from torch import Tensor

from dcem._checks import is_transformed
from dcem._native import compiles_natively, kernel
from dcem.distributions import moments_native as native

try:
    from dcem.distributions import moments_triton as fused
except ImportError:  # no Triton here
    fused = None  # type: ignore[assignment]


def weighted_moments(
    u: Tensor, w: Tensor, least: float | Tensor = 0.0, near: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, each (*B, n), of samples u (*B, N, n) with weights w (*B, N) of any sum.

    The variance is at least ``least`` + (near · mean)², and passes no gradient where it would be less.

    >>> weighted_moments(torch.tensor([[0.0], [1.0], [7.0]]), torch.tensor([2.0, 2.0, 0.0]))
    (tensor([0.5000]), tensor([0.5000]))
    """
    # The root's slope is infinite at 0, where all samples are one point: stop just above.
    floor = least if isinstance(least, Tensor) else max(least, torch.finfo(u.dtype).tiny)
    if is_transformed():
        if compiles_natively(u) and w.dtype == u.dtype and u.numel() > 0:
            return _TracedMoments.apply(u, w, floor, near)
        return _plain(u, w, floor, near)
    if not isinstance(floor, Tensor) and _use_fused(u, w):
        return fused.moments(u, w, floor, near)
    return _WeightedMoments.apply(u, w, floor, near)


def _plain(u: Tensor, w: Tensor, floor: float | Tensor, near: float) -> tuple[Tensor, Tensor]:
    p = (w / w.sum(-1, keepdim=True)).unsqueeze(-1)
    mean = (p * u).sum(-2, keepdim=True)
    variance = (p * (u - mean).square()).sum(-2)
    mean = mean.squeeze(-2)
    return mean, torch.maximum(variance, _least(mean.detach(), floor, near)).sqrt()


def _least(mean: Tensor, floor: float | Tensor, near: float) -> Tensor:
    """The least variance, (*B, n)."""
    return (near * mean).square() + floor


def _use_fused(u: Tensor, w: Tensor) -> bool:
    """Does the Triton kernel do this one? It has no gradient."""
    if fused is None or not u.is_cuda or u.dtype != torch.float32 or u.numel() == 0:
        return False
    return not (torch.is_grad_enabled() and (u.requires_grad or w.requires_grad))


class _WeightedMoments(torch.autograd.Function):
    """With d = u - mean and p = w / Σw:  ∂mean/∂u_i = p_i,  ∂var/∂u_i = 2 p_i d_i,  ∂mean/∂w_i = d_i / Σw,
    ∂var/∂w_i = (d_i² - var) / Σw."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, w: Tensor, floor: float | Tensor, near: float) -> tuple[Tensor, Tensor]:
        ctx.floor, ctx.near = floor, near
        ctx.native = u.numel() > 0 and kernel("moments", u, w, floor) is not None
        if ctx.native:
            mean, sigma, slope = native.forward(u, w, floor, near)
            ctx.save_for_backward(u, w, mean, slope)
            return mean, sigma
        total = w.sum(-1, keepdim=True)
        p = (w / total).unsqueeze(-1)
        mean = (p * u).sum(-2, keepdim=True)
        d = u - mean
        variance = (p * d).mul_(d).sum(-2)
        mean = mean.squeeze(-2)
        least = _least(mean, floor, near)
        sigma = torch.maximum(variance, least).sqrt_()
        ctx.save_for_backward(u, w, total, p, d, variance > least, sigma)
        return mean, sigma

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        u, w, *more = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: differentiate the plain formula
            wanted = [x for x, need in zip((u, w), ctx.needs_input_grad, strict=False) if need]
            moments = _plain(u, w, ctx.floor, ctx.near)
            found = iter(torch.autograd.grad(moments, wanted, grads, create_graph=True))
            return *(next(found) if need else None for need in ctx.needs_input_grad[:2]), None, None
        gmean, gsigma = grads
        if ctx.native:
            mean, slope = more
            return *native.backward(u, w, mean, slope, gmean, gsigma), None, None
        total, p, d, above, sigma = more
        gmean = gmean.unsqueeze(-2)
        gvar = torch.where(above, gsigma / (2 * sigma), 0.0).unsqueeze(-2)
        slope = torch.addcmul(gmean, d, gvar)
        gu = gw = None
        if ctx.needs_input_grad[0]:
            gu = torch.addcmul(slope, d, gvar).mul_(p)
        if ctx.needs_input_grad[1]:
            gp = slope.mul_(d).sum(-1)
            gw = (gp - (p.squeeze(-1) * gp).sum(-1, keepdim=True)).div_(total)
        return gu, gw, None, None


class _TracedMoments(torch.autograd.Function):
    """The same by operators, for compilers."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, w: Tensor, floor: float | Tensor, near: float) -> tuple[Tensor, Tensor]:
        mean, sigma, slope = native.traced_forward(u, w, floor, near)
        ctx.save_for_backward(u, w, mean, slope)
        return mean, sigma

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gu, gw = native.traced_backward(*ctx.saved_tensors, *grads)
        return gu, gw, None, None

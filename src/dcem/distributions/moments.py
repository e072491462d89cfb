"""Weighted mean and variance, with a backward that makes few passes over the samples."""

from typing import Any

import torch
from torch import Tensor


def weighted_moments(u: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance, each (*B, n), of samples u (*B, N, n) with weights w (*B, N) of any positive sum.

    >>> weighted_moments(torch.tensor([[0.0], [1.0], [7.0]]), torch.tensor([2.0, 2.0, 0.0]))
    (tensor([0.5000]), tensor([0.2500]))
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        p, mean, d = _centre(u, w)
        return mean.squeeze(-2), (p @ d.square()).squeeze(-2)
    return _WeightedMoments.apply(u, w)


def _centre(u: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p = (w / w.sum(-1, keepdim=True)).unsqueeze(-2)  # (*B, 1, N)
    mean = p @ u
    return p, mean, u - mean


class _WeightedMoments(torch.autograd.Function):
    """With d = u - mean and p = w / Σw:  ∂mean/∂u_i = p_i,  ∂var/∂u_i = 2 p_i d_i,  ∂mean/∂w_i = d_i / Σw,
    ∂var/∂w_i = (d_i² - var) / Σw."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        p, mean, d = _centre(u, w)
        variance = p @ d.square()
        ctx.save_for_backward(u, w, p, d)
        return mean.squeeze(-2), variance.squeeze(-2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        u, w, p, d = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: p and d must depend on u and w
            p, _, d = _centre(u, w)
        gmean, gvar = (g.unsqueeze(-2) for g in grads)
        slope = torch.addcmul(gmean, d, gvar)
        gu = gw = None
        if ctx.needs_input_grad[0]:
            gu = p.mT * torch.addcmul(slope, d, gvar)
        if ctx.needs_input_grad[1]:
            gw = (d * slope).sum(-1)
            gw = (gw - (p.squeeze(-2) * gw).sum(-1, keepdim=True)) / w.sum(-1, keepdim=True)
        return gu, gw

"""Samples of a diagonal Gaussian as one autograd function on CUDA, with one kernel each way."""

from typing import Any

import torch
from torch import Tensor

from dcem._graph import by_formula
from dcem.distributions import fused
from dcem.distributions.box import Box

try:
    from dcem.distributions import samples_triton as kernels
except ImportError:  # Triton is not installed
    kernels = None  # type: ignore[assignment]


def drawn_by_kernel(
    mean: Tensor, sigma: Tensor, noise: Tensor, box: Box | None
) -> tuple[Tensor, Tensor] | None:
    """mean + sigma · noise (*B, N, n) for mean and sigma (*B, n), clamped to the box, as u and as x.

    None if the kernel does not support the input, or saves nothing. The gradients of u, from the refit, and
    of x, from the objective, meet inside the kernel: autograd need not add them up.
    """
    if kernels is None or not fused.wanted(noise) or noise.requires_grad:
        return None
    shape = (*noise.shape[:-2], noise.shape[-1])
    if any((x.shape, x.dtype, x.device) != (shape, noise.dtype, noise.device) for x in (mean, sigma)):
        return None
    bounds = None if box is None else (box.low, box.high)
    if torch.is_grad_enabled() and any(isinstance(b, Tensor) and b.requires_grad for b in bounds or ()):
        return None
    if not (torch.is_grad_enabled() and (mean.requires_grad or sigma.requires_grad)):
        if bounds is None:
            return None  # one kernel in torch, too
        return kernels.forward(mean, sigma, noise, bounds, False)
    return _Drawn.apply(mean, sigma, noise, bounds)


class _Drawn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, sigma: Tensor, noise: Tensor, bounds: Any) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(mean, sigma, noise)
        ctx.bounds = bounds
        ctx.set_materialize_grads(False)
        return kernels.forward(mean, sigma, noise, bounds, True)

    @staticmethod
    def backward(ctx: Any, gu: Tensor | None, gx: Tensor | None) -> tuple[Tensor | None, ...]:
        mean, sigma, noise = ctx.saved_tensors
        if gu is None:
            gu, gx = gx, None
        if gu is None:
            return None, None, None, None
        if not by_formula(gu, gx):
            return *kernels.backward(gu, gx, mean, sigma, noise, ctx.bounds), None, None
        g = gu if gx is None else gu + gx
        if ctx.bounds is not None:
            u = torch.addcmul(mean.detach().unsqueeze(-2), sigma.detach().unsqueeze(-2), noise)
            low, high = (b.to(u) if isinstance(b, Tensor) else b for b in ctx.bounds)
            g = torch.where((u >= low) & (u <= high), g, 0.0)
        return g.sum(-2), (g * noise).sum(-2), None, None

"""Weighted moments on the CPU as one kernel forward and one backward, also as operators for compilers."""

from typing import Any

import torch
from torch import Tensor

from dcem._native import OPERATORS, kernels, pointer, threads


def forward(u: Tensor, w: Tensor, floor: float | Tensor, near: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, standard deviation and its derivative by the variance, each (*B, n)."""
    u, w = u.contiguous(), w.contiguous()
    *batch, count, n = u.shape
    mean, sigma, slope = (u.new_empty(*batch, n) for _ in range(3))
    floors = floor.expand(*batch, n).contiguous() if isinstance(floor, Tensor) else None
    kernels()["moments", u.dtype](
        mean.numel() // n, count, n, u.data_ptr(), w.data_ptr(), floor if floors is None else 0.0,
        pointer(floors), near, threads(u), mean.data_ptr(), sigma.data_ptr(), slope.data_ptr(),
    )  # fmt: skip
    return mean, sigma, slope


def backward(
    u: Tensor, w: Tensor, mean: Tensor, slope: Tensor, gmean: Tensor, gsigma: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of u and w."""
    u, w, gmean, gsigma = (x.contiguous() for x in (u, w, gmean, gsigma))
    *_, count, n = u.shape
    gu, gw = torch.empty_like(u), torch.empty_like(w)
    kernels()["moments_backward", u.dtype](
        mean.numel() // n, count, n, u.data_ptr(), w.data_ptr(), mean.data_ptr(), slope.data_ptr(),
        gmean.data_ptr(), gsigma.data_ptr(), threads(u), gu.data_ptr(), gw.data_ptr(),
    )  # fmt: skip
    return gu, gw


def traced_forward(u: Tensor, w: Tensor, floor: float | Tensor, near: float) -> tuple[Tensor, Tensor, Tensor]:
    """`forward` as an operator."""
    tensor = isinstance(floor, Tensor)
    return torch.ops.dcem.moments(u, w, 0.0 if tensor else floor, floor if tensor else None, near)


def traced_backward(
    u: Tensor, w: Tensor, mean: Tensor, slope: Tensor, gmean: Tensor, gsigma: Tensor
) -> tuple[Tensor, Tensor]:
    """`backward` as an operator."""
    return torch.ops.dcem.moments_backward(u, w, mean, slope, gmean, gsigma)


def _forward(
    u: Tensor, w: Tensor, floor: float, floors: Tensor | None, near: float
) -> tuple[Tensor, Tensor, Tensor]:
    return forward(u, w, floor if floors is None else floors, near)


OPERATORS.define(
    "moments(Tensor u, Tensor w, float floor, Tensor? floors, float near) -> (Tensor, Tensor, Tensor)"
)
OPERATORS.define(
    "moments_backward(Tensor u, Tensor w, Tensor mean, Tensor slope, Tensor gmean, Tensor gsigma)"
    " -> (Tensor, Tensor)"
)
OPERATORS.impl("moments", _forward, "CPU")
OPERATORS.impl("moments_backward", backward, "CPU")


@torch.library.register_fake("dcem::moments", lib=OPERATORS)
def _(u: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    mean = u.new_empty(*u.shape[:-2], u.shape[-1])
    return mean, torch.empty_like(mean), torch.empty_like(mean)


@torch.library.register_fake("dcem::moments_backward", lib=OPERATORS)
def _(u: Tensor, w: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), w.new_empty(w.shape)

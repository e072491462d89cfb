"""Weighted moments on the CPU as one kernel forward and one backward, also as operators for compilers."""

from typing import Any

import torch
from torch import Tensor

from dcem._native import OPERATORS, kernels, pointer, threads


def forward(
    u: Tensor,
    w: Tensor,
    last_mean: Tensor | None,
    last_sigma: Tensor | None,
    slowest: float,
    floor: float,
    floors: Tensor | None,
    near: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Mean, standard deviation σ, its derivative ∂σ/∂variance and rank-mu terms, each (*B, n)."""
    u, w = u.contiguous(), w.contiguous()
    *batch, count, n = u.shape
    mean = u.new_empty(*batch, n)
    sigma, slope = torch.empty_like(mean), torch.empty_like(mean)
    excess = None if last_mean is None else torch.empty_like(mean)
    last = [None if x is None else x.contiguous() for x in (last_mean, last_sigma)]
    floors = None if floors is None else floors.expand(*batch, n).contiguous()
    kernels()["moments", u.dtype](
        mean.numel() // n, count, n, u.data_ptr(), w.data_ptr(), *map(pointer, last), slowest, floor,
        pointer(floors), near, threads(u), mean.data_ptr(), sigma.data_ptr(), slope.data_ptr(),
        pointer(excess),
    )  # fmt: skip
    return mean, sigma, slope, excess


def backward(
    u: Tensor,
    w: Tensor,
    last_mean: Tensor | None,
    last_sigma: Tensor | None,
    slowest: float,
    mean: Tensor,
    slope: Tensor,
    excess: Tensor | None,
    gmean: Tensor,
    gsigma: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients for u and w, and with rank-mu for the last mean and standard deviation."""
    u, w, gmean, gsigma = (x.contiguous() for x in (u, w, gmean, gsigma))
    *_, count, n = u.shape
    gu, gw = torch.empty_like(u), torch.empty_like(w)
    glast_mean, glast_sigma = (None if last_mean is None else torch.empty_like(mean) for _ in range(2))
    last = [None if x is None else x.contiguous() for x in (last_mean, last_sigma)]
    kernels()["moments_backward", u.dtype](
        mean.numel() // n, count, n, u.data_ptr(), w.data_ptr(), *map(pointer, last), slowest,
        mean.data_ptr(), slope.data_ptr(), pointer(excess), gmean.data_ptr(), gsigma.data_ptr(),
        threads(u), gu.data_ptr(), gw.data_ptr(), pointer(glast_mean), pointer(glast_sigma),
    )  # fmt: skip
    return gu, gw, glast_mean, glast_sigma


def _forward(u: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return _all_tensors(forward(u, *inputs), u)


def _backward(u: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return _all_tensors(backward(u, *inputs), u)


def _all_tensors(found: tuple[Tensor | None, ...], u: Tensor) -> tuple[Tensor, ...]:
    """As operators return them, with placeholders in the shape of the mean for outputs only rank-mu has."""
    return tuple(u.new_empty(*u.shape[:-2], u.shape[-1]) if x is None else x for x in found)


OPERATORS.define(
    "moments(Tensor u, Tensor w, Tensor? last_mean, Tensor? last_sigma, float slowest, float floor,"
    " Tensor? floors, float near) -> (Tensor, Tensor, Tensor, Tensor)"
)
OPERATORS.define(
    "moments_backward(Tensor u, Tensor w, Tensor? last_mean, Tensor? last_sigma, float slowest, Tensor mean,"
    " Tensor slope, Tensor excess, Tensor gmean, Tensor gsigma) -> (Tensor, Tensor, Tensor, Tensor)"
)
OPERATORS.impl("moments", _forward, "CPU")
OPERATORS.impl("moments_backward", _backward, "CPU")


@torch.library.register_fake("dcem::moments", lib=OPERATORS)
def _(u: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(u.new_empty(*u.shape[:-2], u.shape[-1]) for _ in range(4))


@torch.library.register_fake("dcem::moments_backward", lib=OPERATORS)
def _(u: Tensor, w: Tensor, *_: Any) -> tuple[Tensor, ...]:
    last = (u.new_empty(*u.shape[:-2], u.shape[-1]) for _ in range(2))
    return u.new_empty(u.shape), w.new_empty(w.shape), *last


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    u, w, last_mean, last_sigma, ctx.slowest, *_ = inputs
    mean, _, slope, excess = output
    ctx.save_for_backward(u, w, last_mean, last_sigma, mean, slope, excess)


def _traced_backward(ctx: Any, gmean: Tensor, gsigma: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    u, w, last_mean, last_sigma, *rows = ctx.saved_tensors
    found = torch.ops.dcem.moments_backward(u, w, last_mean, last_sigma, ctx.slowest, *rows, gmean, gsigma)
    given = 2 if last_mean is None else 4
    return *found[:given], *(None for _ in range(8 - given))


torch.library.register_autograd("dcem::moments", _traced_backward, setup_context=_remember, lib=OPERATORS)

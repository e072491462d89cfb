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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, σ, ∂σ/∂variance and, of use with rank-mu, the excess of the variance, each (*B, n)."""
    u, w = u.contiguous(), w.contiguous()
    *batch, count, n = u.shape
    mean, sigma, slope, excess = (u.new_empty(*batch, n) for _ in range(4))
    last = [None if x is None else x.contiguous() for x in (last_mean, last_sigma)]
    floors = None if floors is None else floors.expand(*batch, n).contiguous()
    kernels()["moments", u.dtype](
        mean.numel() // n, count, n, u.data_ptr(), w.data_ptr(), *map(pointer, last), slowest, floor,
        pointer(floors), near, threads(u), mean.data_ptr(), sigma.data_ptr(), slope.data_ptr(),
        excess.data_ptr(),
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
    excess: Tensor,
    gmean: Tensor,
    gsigma: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients for u and w, and of use with rank-mu those for the last mean and standard deviation."""
    u, w, gmean, gsigma = (x.contiguous() for x in (u, w, gmean, gsigma))
    *_, count, n = u.shape
    gu, gw, glast_mean, glast_sigma = (torch.empty_like(x) for x in (u, w, mean, mean))
    last = [None if x is None else x.contiguous() for x in (last_mean, last_sigma)]
    kernels()["moments_backward", u.dtype](
        mean.numel() // n, count, n, u.data_ptr(), w.data_ptr(), *map(pointer, last), slowest,
        mean.data_ptr(), slope.data_ptr(), excess.data_ptr(), gmean.data_ptr(), gsigma.data_ptr(),
        threads(u), gu.data_ptr(), gw.data_ptr(), glast_mean.data_ptr(), glast_sigma.data_ptr(),
    )  # fmt: skip
    return gu, gw, glast_mean, glast_sigma


OPERATORS.define(
    "moments(Tensor u, Tensor w, Tensor? last_mean, Tensor? last_sigma, float slowest, float floor,"
    " Tensor? floors, float near) -> (Tensor, Tensor, Tensor, Tensor)"
)
OPERATORS.define(
    "moments_backward(Tensor u, Tensor w, Tensor? last_mean, Tensor? last_sigma, float slowest, Tensor mean,"
    " Tensor slope, Tensor excess, Tensor gmean, Tensor gsigma) -> (Tensor, Tensor, Tensor, Tensor)"
)
OPERATORS.impl("moments", forward, "CPU")
OPERATORS.impl("moments_backward", backward, "CPU")


@torch.library.register_fake("dcem::moments", lib=OPERATORS)
def _(u: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(u.new_empty(*u.shape[:-2], u.shape[-1]) for _ in range(4))


@torch.library.register_fake("dcem::moments_backward", lib=OPERATORS)
def _(u: Tensor, w: Tensor, *_: Any) -> tuple[Tensor, ...]:
    last = (u.new_empty(*u.shape[:-2], u.shape[-1]) for _ in range(2))
    return u.new_empty(u.shape), w.new_empty(w.shape), *last


def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save what the backward pass needs."""
    u, w, last_mean, last_sigma, *ctx.settings = inputs
    mean, _, slope, excess = output
    ctx.save_for_backward(u, w, last_mean, last_sigma, mean, slope, excess)


def gradients(ctx: Any, grads: tuple[Tensor, ...], run: Any) -> tuple[Tensor | None, ...]:
    """Those of the inputs of `forward`, where `run` is `backward`, or the operator of that name."""
    u, w, last_mean, last_sigma, *rows = ctx.saved_tensors
    found = run(u, w, last_mean, last_sigma, ctx.settings[0], *rows, *grads)
    given = 2 if last_mean is None else 4
    return *found[:given], *(None for _ in range(8 - given))


def _traced_backward(ctx: Any, gmean: Tensor, gsigma: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    return gradients(ctx, (gmean, gsigma), torch.ops.dcem.moments_backward)


torch.library.register_autograd("dcem::moments", _traced_backward, setup_context=remember, lib=OPERATORS)

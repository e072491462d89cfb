"""The soft top-k on the CPU as one kernel forward and one backward, standardising included.

Also as operators, which `torch.compile` calls unchanged from the code it generates for the objective. k and
tau are numbers, or else tensors over the rows: ks and taus.
"""

from typing import Any

import torch
from torch import Tensor

from dcem._native import OPERATORS, kernels, pointer, threads
from dcem.topk.standardize import DIGITS

STANDARDIZE, FINITE_ONLY, GATE, LOWEST, HALF = 1, 2, 4, 8, 16


class InfiniteError(ArithmeticError):
    """An entry is +inf and must be ranked: the kernel does not support that."""


def split(value: float | Tensor) -> tuple[float, Tensor | None]:
    """A number, or a tensor over the rows, as the two arguments that stand for it."""
    return (0.0, value) if isinstance(value, Tensor) else (float(value), None)


def forward(
    x: Tensor, k: float, ks: Tensor | None, tau: float, taus: Tensor | None, slopes_at: float, flags: int
) -> tuple[Tensor, Tensor, Tensor]:
    """y and z (*B, n), and for every row (*B, 4) its centre, 1 / scale, whether gradients pass, and the
    number of entries behind the scale.

    z is at `slopes_at` where that is above tau. Flags: STANDARDIZE the finite entries, or scale them by their
    better HALF; FINITE_ONLY gives +inf weight zero as well; GATE passes no gradients where entries differ
    only by rounding; LOWEST uses -x.
    """
    x, n = x.contiguous(), x.shape[-1]
    y, z, stats = torch.empty_like(x), torch.empty_like(x), x.new_empty(*x.shape[:-1], 4)
    ks, taus = _expanded(ks, x), _expanded(taus, x)
    refused = kernels()["soft_topk", x.dtype](
        x.numel() // n, n, x.data_ptr(), k, pointer(ks), tau, pointer(taus), slopes_at, flags, DIGITS,
        threads(x), y.data_ptr(), z.data_ptr(), stats.data_ptr(),
    )  # fmt: skip
    if refused:
        raise InfiniteError
    return y, z, stats


def backward(
    g: Tensor, x: Tensor, z: Tensor, stats: Tensor, tau: float, taus: Tensor | None, flags: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients for x (*B, n), and for k and tau per row, (*B, 1)."""
    g, x, n = g.contiguous(), x.contiguous(), x.shape[-1]
    gx, gk, gtau = torch.empty_like(x), *(x.new_empty(*x.shape[:-1], 1) for _ in range(2))
    taus = _expanded(taus, x)
    kernels()["soft_topk_backward", x.dtype](
        x.numel() // n, n, x.data_ptr(), g.data_ptr(), z.data_ptr(), stats.data_ptr(), tau, pointer(taus),
        flags, threads(x), gx.data_ptr(), gk.data_ptr(), gtau.data_ptr(),
    )  # fmt: skip
    return gx, gk, gtau


def _expanded(value: Tensor | None, x: Tensor) -> Tensor | None:
    """One value for each row of x."""
    return None if value is None else value.expand(*x.shape[:-1], 1).contiguous()


def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save what the backward pass needs."""
    x, ctx.k, ks, tau, taus, slopes_at, ctx.flags = inputs
    ctx.tau = slopes_at or tau
    _, z, stats = output
    ctx.save_for_backward(x, ks, taus, z, stats)


def gradients(ctx: Any, g: Tensor, run: Any) -> tuple[Tensor | None, ...]:
    """Those of the inputs of `forward`, where `run` is `backward`, or the operator of that name."""
    x, ks, taus, z, stats = ctx.saved_tensors
    gx, gk, gtau = run(g, x, z, stats, ctx.tau, taus, ctx.flags)
    gk = None if ks is None else gk.sum_to_size(ks.shape)
    gtau = None if taus is None else gtau.sum_to_size(taus.shape)
    return gx, None, gk, None, gtau, None, None


OPERATORS.define(
    "soft_topk(Tensor x, float k, Tensor? ks, float tau, Tensor? taus, float slopes_at, int flags)"
    " -> (Tensor, Tensor, Tensor)"
)
OPERATORS.define(
    "soft_topk_backward(Tensor g, Tensor x, Tensor z, Tensor stats, float tau, Tensor? taus, int flags)"
    " -> (Tensor, Tensor, Tensor)"
)
OPERATORS.impl("soft_topk", forward, "CPU")
OPERATORS.impl("soft_topk_backward", backward, "CPU")


@torch.library.register_fake("dcem::soft_topk", lib=OPERATORS)
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    like = torch.empty_like(x, memory_format=torch.contiguous_format)
    return like, torch.empty_like(like), x.new_empty(*x.shape[:-1], 4)


@torch.library.register_fake("dcem::soft_topk_backward", lib=OPERATORS)
def _(g: Tensor, x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    row = x.new_empty(*x.shape[:-1], 1)
    return torch.empty_like(x, memory_format=torch.contiguous_format), row, torch.empty_like(row)


def _traced_backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    return gradients(ctx, g, torch.ops.dcem.soft_topk_backward)


torch.library.register_autograd("dcem::soft_topk", _traced_backward, setup_context=remember, lib=OPERATORS)

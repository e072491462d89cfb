"""The soft top-k on the CPU as one kernel forward and one backward, standardising included.

`forward` and `backward` call it. `traced` is the same as an operator, which `torch.compile` calls unchanged
from the code it generates for the objective.
"""

from typing import Any

import torch
from torch import Tensor

from dcem._native import OPERATORS, kernel, kernels, pointer, threads
from dcem.topk.standardize import DIGITS

STANDARDIZE, FINITE_ONLY, GATE, LOWEST, HALF = 1, 2, 4, 8, 16


class InfiniteError(ArithmeticError):
    """An entry is +inf and must be ranked: the kernel does not support that."""


def serves(x: Tensor, k: float | Tensor, tau: float | Tensor) -> bool:
    """Does the kernel support these arguments?"""
    return kernel("soft_topk", x, k, tau) is not None


def forward(
    x: Tensor, k: float | Tensor, tau: float | Tensor, slopes_at: float | None, flags: int
) -> tuple[Tensor, Tensor, Tensor]:
    """y and z (*B, n), and for every row (*B, 4) its centre, 1 / scale, whether gradients pass, and the
    number of entries behind the scale.

    z is at `slopes_at` where that is above tau. Flags: STANDARDIZE the finite entries, or scale them by their
    better HALF; FINITE_ONLY gives +inf weight zero as well; GATE passes no gradients where entries differ
    only by rounding; LOWEST uses -x.
    """
    x = x.contiguous()
    y, z, stats = torch.empty_like(x), torch.empty_like(x), x.new_empty(*x.shape[:-1], 4)
    k, ks = _rows(k, x)
    tau, taus = _rows(tau, x)
    n = x.shape[-1]
    refused = kernels()["soft_topk", x.dtype](
        x.numel() // n, n, x.data_ptr(), k, pointer(ks), tau, pointer(taus), slopes_at or 0.0, flags, DIGITS,
        threads(x), y.data_ptr(), z.data_ptr(), stats.data_ptr(),
    )  # fmt: skip
    if refused:
        raise InfiniteError
    return y, z, stats


def backward(
    g: Tensor, x: Tensor, z: Tensor, stats: Tensor, tau: float | Tensor, flags: int, settings: bool = True
) -> tuple[Tensor, Any, Any]:
    """The gradients for x (*B, n) and, with `settings`, those for k and tau per row, (*B, 1)."""
    g, x = g.contiguous(), x.contiguous()
    gx = torch.empty_like(x)
    gk, gtau = (x.new_empty(*x.shape[:-1], 1) if settings else None for _ in range(2))
    tau, taus = _rows(tau, x)
    n = x.shape[-1]
    kernels()["soft_topk_backward", x.dtype](
        x.numel() // n, n, x.data_ptr(), g.data_ptr(), z.data_ptr(), stats.data_ptr(), tau, pointer(taus),
        flags, threads(x), gx.data_ptr(), pointer(gk), pointer(gtau),
    )  # fmt: skip
    return gx, gk, gtau


def traced(x: Tensor, k: float | Tensor, tau: float | Tensor, slopes_at: float | None, flags: int) -> Tensor:
    """y, by an operator that torch.compile knows, including gradients."""
    return torch.ops.dcem.soft_topk(x, *_split(k), *_split(tau), slopes_at or 0.0, flags)[0]


def _split(value: float | Tensor) -> tuple[float, Tensor | None]:
    return (0.0, value) if isinstance(value, Tensor) else (float(value), None)


def _rows(value: float | Tensor, x: Tensor) -> tuple[float, Tensor | None]:
    """A number, or a tensor with one value for each row of x."""
    if not isinstance(value, Tensor):
        return value, None
    return 0.0, value.expand(*x.shape[:-1], 1).contiguous()


def _joined(value: float, tensor: Tensor | None) -> float | Tensor:
    return value if tensor is None else tensor


def _forward(
    x: Tensor, k: float, ks: Tensor | None, tau: float, taus: Tensor | None, slopes_at: float, flags: int
) -> tuple[Tensor, Tensor, Tensor]:
    return forward(x, _joined(k, ks), _joined(tau, taus), slopes_at, flags)


def _backward(
    g: Tensor, x: Tensor, z: Tensor, stats: Tensor, tau: float, taus: Tensor | None, flags: int
) -> tuple[Tensor, Tensor, Tensor]:
    return backward(g, x, z, stats, _joined(tau, taus), flags)


OPERATORS.define(
    "soft_topk(Tensor x, float k, Tensor? ks, float tau, Tensor? taus, float slopes_at, int flags)"
    " -> (Tensor, Tensor, Tensor)"
)
OPERATORS.define(
    "soft_topk_backward(Tensor g, Tensor x, Tensor z, Tensor stats, float tau, Tensor? taus, int flags)"
    " -> (Tensor, Tensor, Tensor)"
)
OPERATORS.impl("soft_topk", _forward, "CPU")
OPERATORS.impl("soft_topk_backward", _backward, "CPU")


@torch.library.register_fake("dcem::soft_topk", lib=OPERATORS)
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    like = torch.empty_like(x, memory_format=torch.contiguous_format)
    return like, torch.empty_like(like), x.new_empty(*x.shape[:-1], 4)


@torch.library.register_fake("dcem::soft_topk_backward", lib=OPERATORS)
def _(g: Tensor, x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    row = x.new_empty(*x.shape[:-1], 1)
    return torch.empty_like(x, memory_format=torch.contiguous_format), row, torch.empty_like(row)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, ks, tau, taus, slopes_at, ctx.flags = inputs
    ctx.tau = slopes_at or tau
    _, z, stats = output
    ctx.save_for_backward(x, ks, taus, z, stats)


def _traced_backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, ks, taus, z, stats = ctx.saved_tensors
    gx, gk, gtau = torch.ops.dcem.soft_topk_backward(g, x, z, stats, ctx.tau, taus, ctx.flags)
    gk = None if ks is None else gk.sum_to_size(ks.shape)
    gtau = None if taus is None else gtau.sum_to_size(taus.shape)
    return gx, None, gk, None, gtau, None, None


torch.library.register_autograd("dcem::soft_topk", _traced_backward, setup_context=_remember, lib=OPERATORS)

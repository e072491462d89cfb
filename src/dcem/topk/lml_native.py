"""The soft top-k on the CPU as one kernel forward and one backward, standardising included."""

import torch
from torch import Tensor

from dcem._native import kernel, kernels, pointer, threads

_STANDARDIZE = 1


class NotFiniteError(ArithmeticError):
    """There is no kernel for entries that are not finite."""


def serves(x: Tensor, k: float | Tensor, tau: float | Tensor, slopes_at: float | Tensor | None) -> bool:
    """Is there a kernel for these?"""
    return not isinstance(slopes_at, Tensor) and kernel("soft_topk", x, k, tau) is not None


def forward(
    x: Tensor, k: float | Tensor, tau: float | Tensor, standardize: bool, slopes_at: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """y and z (*B, n), and mean and 1 / std of every row (*B, 2). z is at `slopes_at`, if that is given."""
    x = x.contiguous()
    y, z, stats = torch.empty_like(x), torch.empty_like(x), x.new_empty(*x.shape[:-1], 2)
    k, ks = _rows(k, x)
    tau, taus = _rows(tau, x)
    n = x.shape[-1]
    refused = kernels()["soft_topk", x.dtype](
        x.numel() // n, n, x.data_ptr(), k, pointer(ks), tau, pointer(taus), slopes_at or 0.0,
        _STANDARDIZE * standardize, threads(x), y.data_ptr(), z.data_ptr(), stats.data_ptr(),
    )  # fmt: skip
    if refused:
        raise NotFiniteError
    return y, z, stats


def backward(
    g: Tensor, x: Tensor, z: Tensor, stats: Tensor, tau: float | Tensor, standardize: bool, others: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The gradients of x (*B, n) and, with `others`, those of k and tau of every row, (*B, 1)."""
    g, x = g.contiguous(), x.contiguous()
    gx = torch.empty_like(x)
    gk, gtau = (x.new_empty(*x.shape[:-1], 1) if others else None for _ in range(2))
    tau, taus = _rows(tau, x)
    n = x.shape[-1]
    kernels()["soft_topk_backward", x.dtype](
        x.numel() // n, n, x.data_ptr(), g.data_ptr(), z.data_ptr(), stats.data_ptr(), tau, pointer(taus),
        _STANDARDIZE * standardize, threads(x), gx.data_ptr(), pointer(gk), pointer(gtau),
    )  # fmt: skip
    return gx, gk, gtau


def _rows(value: float | Tensor, x: Tensor) -> tuple[float, Tensor | None]:
    """A number, or a tensor with one value for each row of x."""
    if not isinstance(value, Tensor):
        return value, None
    return 0.0, value.expand(*x.shape[:-1], 1).contiguous()

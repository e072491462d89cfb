"""Products of every member's matrices (M, R, i) and (M, i, o), as the world model's training needs them.

On the CPU they are those of `native.cpp`, if there is a compiler: on some CPUs twice as fast as torch's.
"""

import ctypes

import torch
from torch import Tensor

from dcem_lab.suite.rssm.fast import native

_ALONE = 500_000  # multiplications below which one thread finishes before others have started


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight."""
    if not _fits(x, weight):
        return x @ weight
    return _multiply(x, weight, None, x.new_empty(*x.shape[:2], weight.shape[-1]), more=False)


def affine(bias: Tensor, x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """bias (M, o) + x @ weight, written to out."""
    if not _fits(x, weight, out) or not bias.is_contiguous():
        return torch.baddbmm(bias.unsqueeze(1), x, weight, out=out)
    return _multiply(x, weight, bias, out, more=False)


def add_product(out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Adds x @ weight to out."""
    if not _fits(x, weight, out):
        return out.baddbmm_(x, weight)
    return _multiply(x, weight, None, out, more=True)


def transposed(weight: Tensor) -> Tensor:
    """The transposes (M, o, i), laid out as products want them."""
    return weight.mT if weight.is_cuda else weight.mT.contiguous()


class _Products(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("M", "rows", "inputs", "outputs")),
        *((name, ctypes.c_int64) for name in ("left_member", "down", "along")),
        *((name, ctypes.c_int64) for name in ("right_member", "right_row", "out_member", "out_row", "more")),
        *((name, ctypes.c_void_p) for name in ("left", "right", "bias", "out")),
    ]


def _fits(x: Tensor, *in_rows: Tensor) -> bool:
    """Are there kernels for these, of which all but x must have rows in one piece?"""
    return native.fits(x) and all(t.stride(-1) == 1 and t.dtype == x.dtype for t in in_rows)


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, more: bool) -> Tensor:
    M, rows, inputs, outputs = *x.shape, weight.shape[-1]
    if inputs == 0:  # nothing would be written
        return out if more else out.zero_() if bias is None else out.copy_(bias.unsqueeze(1).expand_as(out))
    told = _Products(
        M, rows, inputs, outputs, *x.stride(), *weight.stride()[:2], *out.stride()[:2], more,
        x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    threads = torch.get_num_threads() if M * rows * inputs * outputs >= _ALONE else 1
    native.library().products(ctypes.byref(told), threads)
    return out

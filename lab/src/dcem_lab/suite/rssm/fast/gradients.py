"""Gradients of fully connected layers over many rows, and how they keep their digits in half precision.

The gradients of numbers in half precision are multiplied by `LOUD`: a loss is a mean over so many numbers
that they would vanish. Those of weights are sums in single precision, and not louder.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dcem_lab.suite.rssm.fast.products import product

try:
    from dcem_lab.suite.rssm.fast import sums_triton as sums
except ImportError:  # Triton is not installed
    sums = None  # type: ignore[assignment]

LOUD = 2.0**12


def loud(dtype: torch.dtype) -> float:
    """How much larger the gradients of numbers of this type are."""
    return LOUD if dtype == torch.float16 else 1.0


def louder(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """A gradient from outside, as that of numbers of this type."""
    return grad if grad.dtype == dtype else (grad * loud(dtype)).to(dtype)


def alike(dtype: torch.dtype, *parameters: Tensor) -> Sequence[Tensor]:
    """The parameters in this type, in one launch."""
    if all(p.dtype == dtype for p in parameters):
        return parameters
    rounded = [torch.empty_like(p, dtype=dtype) for p in parameters]
    torch._foreach_copy_(rounded, parameters)
    return rounded


def layer_gradients(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Of weight (M, i, o) and bias (M, o), for rows (M, R, i) and (M, R, o): float32 if these are float16."""
    if sums is not None and sums.fits(x, grad):
        return sums.layer_gradients(x, grad, 1 / LOUD)
    if x.dtype == torch.float16:
        x, grad = x.float(), grad.float() / LOUD
    return _weight_gradient(x, grad), grad.sum(dim=1)


def _weight_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """xᵀ grad for rows (M, R, i) and (M, R, o): (M, i, o)."""
    if not x.is_cuda:
        return product(x.mT, grad)
    # Few results, each a sum over very many rows: in one piece it would leave most of the device idle.
    parts = max(n for n in range(1, max(x.shape[1] // 256, 1) + 1) if x.shape[1] % n == 0 and n <= 40)
    of_members = zip(x.unflatten(1, (parts, -1)), grad.unflatten(1, (parts, -1)), strict=True)
    return torch.stack([torch.bmm(a.mT, b).sum(dim=0) for a, b in of_members])

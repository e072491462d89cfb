"""The hard top-k, as weights: the limit of LML as its temperature goes to zero."""

import math

import torch
from torch import Tensor

from dcem._checks import all_finite, can_look, is_transformed

try:
    from dcem.topk import hard_triton as fused
except ImportError:  # Triton is not installed
    fused = None  # type: ignore[assignment]


def hard_topk(x: Tensor, k: float | Tensor, finite_only: bool = False) -> Tensor:
    """Weights in [0, 1] along the last dimension: 1 for the k largest entries, 0 for the others.

    A fractional k gives its remainder to the next entry. Equal entries are taken in the order
    `torch.topk` finds them. Entries of -inf or NaN get weight zero, even if fewer than k are left, and with
    `finite_only` those of +inf too. The weights are constants: no gradient passes.

    >>> hard_topk(torch.tensor([3.0, 1.0, 2.0]), 1.5)
    tensor([1.0000, 0.0000, 0.5000])
    """
    x = x.detach()
    if _use_fused(x):
        return fused.hard_topk(x, k.detach() if isinstance(k, Tensor) else k, finite_only)
    if not (can_look(x) and all_finite(x)):
        good = x.isfinite() if finite_only else x > -torch.inf
        return _largest(torch.where(good, x, -torch.inf), k) * good
    return _largest(x, k)


def _largest(x: Tensor, k: float | Tensor) -> Tensor:
    if isinstance(k, Tensor):
        rank = x.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
        return (k.detach() - rank).clamp(0, 1).to(x.dtype)
    index = x.topk(math.ceil(k), dim=-1).indices
    if k == index.shape[-1]:
        return torch.zeros_like(x).scatter(-1, index, torch.ones_like(index, dtype=x.dtype))
    share = torch.ones(index.shape[-1], dtype=x.dtype, device=x.device)
    share[-1] = k % 1
    return torch.zeros_like(x).scatter_(-1, index, share.expand_as(index))


def _use_fused(x: Tensor) -> bool:
    """Does the Triton kernel support this input?"""
    if fused is None or not x.is_cuda or x.dtype != torch.float32 or x.numel() == 0:
        return False
    return x.shape[-1] <= fused.MAX_ROW and not is_transformed()

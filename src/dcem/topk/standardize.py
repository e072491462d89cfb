"""Standardise rows to mean 0 and standard deviation 1, whatever the scale of their entries."""

import math
from typing import Literal

import torch
from torch import Tensor

from dcem._checks import all_finite, can_look

Scaling = bool | Literal["half"]  # scale rows by their standard deviation, or by that of their better half
DIGITS = 100.0  # derivatives are meaningful only where the spread is this many times the rounding


def standardize(x: Tensor, good: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """u = (x - mean) inv and inv = 1 / std, over the last dimension, of size 1 in inv.

    With `good`, over those entries only; the others get 0. A row that is constant up to rounding has inv = 0,
    so that u is 0 and passes no gradient. Moments are taken in double precision, since squares of small or
    large values leave the range of float32.
    """
    count: int | Tensor = x.shape[-1]
    if (
        good is None
        and x.numel() == count
        and can_look(x)
        and not (x.requires_grad and torch.is_grad_enabled())
    ):
        return _standardize_row(x)
    if good is not None:
        count = good.sum(-1, keepdim=True).clamp_min(1)
        x = torch.where(good, x, 0.0)
    mean = x.sum(-1, keepdim=True, dtype=torch.float64) / count
    d = x - mean.to(x.dtype)
    if good is not None:
        d = torch.where(good, d, 0.0)
    norm = torch.linalg.vector_norm(d, dim=-1, keepdim=True, dtype=torch.float64)
    root = math.sqrt(count) if isinstance(count, int) else count.to(torch.float64).sqrt()
    # Relative to the size of the values: an absolute threshold would break for tiny or shifted ones.
    limits = torch.finfo(x.dtype)
    informative = norm > (4 * limits.eps * mean.abs()).clamp_min(limits.tiny) * root
    inv = torch.where(informative, root / torch.where(informative, norm, 1.0), 0.0).to(x.dtype)
    return d * inv, inv


def _standardize_row(x: Tensor) -> tuple[Tensor, Tensor]:
    """The common small case, one row on the CPU, with plain numbers in place of one-element tensors."""
    n, limits = x.shape[-1], torch.finfo(x.dtype)
    mean = x.sum(dtype=torch.float64).item() / n
    d = x - mean
    norm = torch.linalg.vector_norm(d, dtype=torch.float64).item()
    informative = norm > max(4 * limits.eps * abs(mean), limits.tiny) * math.sqrt(n)
    inv = math.sqrt(n) / norm if informative else 0.0
    return d * inv, x.new_full((*x.shape[:-1], 1), inv)


def resolved(values: Tensor) -> Tensor:
    """In which rows (*B, 1) do the values (*B, N) differ by more than rounding?

    They do not once a search has converged. Gradients of a row's values sum to zero, but each grows as the
    spread falls. In the end only their rounding errors would be left, times the part all samples share.
    """
    if not (can_look(values) and all_finite(values)):
        values = torch.where(values.isfinite(), values, torch.nan)
        values = torch.where(values.isnan(), values.nanmean(-1, keepdim=True), values)
    spread, mean = torch.std_mean(values, dim=-1, keepdim=True, correction=0)
    return spread > DIGITS * torch.finfo(values.dtype).eps * mean.abs()


def gated(weights: Tensor, values: Tensor) -> Tensor:
    """The weights of values, with gradients only where the values are `resolved`."""
    if not weights.requires_grad:
        return weights
    open_rows = resolved(values.detach())
    if can_look(open_rows) and bool(open_rows.all()):
        return weights
    return torch.where(open_rows, weights, weights.detach())

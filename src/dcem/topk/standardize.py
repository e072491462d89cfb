"""Standardise rows to mean 0 and standard deviation 1, whatever the scale of their entries."""

from typing import Literal

import torch
from torch import Tensor

from dcem._checks import all_finite, can_look

Scaling = bool | Literal["half"]  # scale rows by their standard deviation, or by that of their better half
DIGITS = 100.0  # derivatives are meaningful only where the spread is this many times the rounding


def standardize(x: Tensor, good: Tensor) -> Tensor:
    """(x - mean) / std over the last dimension, of the `good` entries; the others get 0.

    A row that is constant up to rounding becomes 0, and passes no gradient.
    """
    x = torch.where(good, x, 0.0)
    mean = x.sum(-1, keepdim=True, dtype=torch.float64) / good.sum(-1, keepdim=True).clamp_min(1)
    d = torch.where(good, x - mean.to(x.dtype), 0.0)
    # Relative to the size of the values: an absolute threshold would break for tiny or shifted ones.
    limits = torch.finfo(x.dtype)
    return d * inverse_spread(d, good, (4 * limits.eps * mean.abs()).clamp_min(limits.tiny))


def inverse_spread(d: Tensor, among: Tensor, rounding: Tensor) -> Tensor:
    """1 / s (*B, 1), with s² the mean of d² (*B, N) over some entries; 0 where s is no more than rounding.

    In double precision, since squares of small or large values leave the range of float32.
    """
    root = among.sum(-1, keepdim=True).clamp_min(1).to(torch.float64).sqrt()
    norm = torch.linalg.vector_norm(torch.where(among, d, 0.0), dim=-1, keepdim=True, dtype=torch.float64)
    informative = norm > rounding * root
    return torch.where(informative, root / torch.where(informative, norm, 1.0), 0.0).to(d.dtype)


def resolved(values: Tensor) -> Tensor:
    """In which rows (*B, 1) do the values (*B, N) differ by more than rounding?

    They do not once a search has converged. Gradients of a row's values sum to zero, but each grows as the
    spread falls. In the end only their rounding errors would be left, times the part all samples share.
    """
    if not (can_look(values) and all_finite(values)):
        values = torch.nan_to_num(values, torch.inf, torch.inf, torch.inf)
        values = torch.where(values == torch.inf, values.amin(-1, keepdim=True), values)
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

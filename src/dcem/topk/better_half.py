"""Rows brought to one scale by their better half, which a few huge entries do not change."""

import torch
from torch import Tensor

from dcem.topk.standardize import inverse_spread


def by_better_half(v: Tensor) -> Tensor:
    """(v - median) / s along the last dimension, with s² the mean of (v - median)² over v <= median.

    Where values are normally distributed, s is their standard deviation. If the better half is constant
    up to rounding, s is computed from all values; if all values are, the row becomes 0. Entries that are
    not finite are left out, and become NaN.

    >>> by_better_half(torch.tensor([0.0, 1.0, 2.0, 3.0, 1e6]))
    tensor([-1.5492e+00, -7.7460e-01,  0.0000e+00,  7.7460e-01,  7.7460e+05])
    """
    finite = v.isfinite()
    v = torch.where(finite, v, torch.nan)
    # Subtract the mean too, for the gradient. With the median alone, shift invariance holds only up to
    # rounding, and the rounding error is then divided by the spread.
    d = v - v.nanmean(-1, keepdim=True)
    d = torch.where(finite, d - d.nanmedian(-1, keepdim=True).values, 0.0)
    limits = torch.finfo(v.dtype)
    size = torch.where(finite, v.detach(), 0.0).abs().amax(-1, keepdim=True)
    rounding = (4 * limits.eps * size).clamp_min(limits.tiny)
    better = finite & (d <= 0)
    better = torch.where((better & (d < -rounding)).any(-1, keepdim=True), better, finite)
    return torch.where(finite, d * inverse_spread(d, better, rounding), torch.nan)

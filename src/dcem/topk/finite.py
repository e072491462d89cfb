"""The soft top-k over values some of which may be NaN or infinite."""

import torch
from torch import Tensor

from dcem._checks import all_finite, can_look
from dcem.topk.dual import take, use_fused
from dcem.topk.hard import hard_topk
from dcem.topk.lml import soft_topk


def finite_topk(x: Tensor, k: float | Tensor, tau: float | Tensor, standardize: bool) -> Tensor:
    """`soft_topk` over the finite entries of each row (last dimension); the others get weight exactly zero.

    A row with fewer than k finite entries gives each of them weight one, a row with none is all zeros.
    """
    if can_look(x):
        if all_finite(x):
            return soft_topk(x, k, tau, standardize)
        whole = x.isfinite().all(-1)
        if whole.any() and not whole.all():
            # Rows without such entries must not notice that others have some, not even in the last bit. That
            # depends on a row's place among the others, which it keeps: a copy of a good row fills each gap.
            ordinary = x.detach()[whole][0]
            weights = soft_topk(torch.where(whole.unsqueeze(-1), x, ordinary), k, tau, standardize)
            rows = (~whole).nonzero(as_tuple=True)
            k_, tau_ = take(k, rows, x.shape), take(tau, rows, x.shape)
            return weights.index_put(rows, finite_topk(x[rows], k_, tau_, standardize))
    if not isinstance(tau, Tensor) and tau == 0:
        return hard_topk(x, k, finite_only=True)
    if use_fused(x):
        return soft_topk(x, k, tau, standardize, finite_only=True)
    good = x.isfinite()
    count = good.sum(-1, keepdim=True).to(x.dtype)
    d = torch.where(good, x, 0.0)
    mean = d.sum(-1, keepdim=True) / count.clamp_min(1)
    d = torch.where(good, d - mean, 0.0)
    if standardize:
        variance = d.square().sum(-1, keepdim=True) / count.clamp_min(1)
        informative = variance > (4 * torch.finfo(x.dtype).eps * mean) ** 2
        d = d * torch.where(informative, torch.where(informative, variance, 1.0).rsqrt(), 0.0)
    out_of_reach = d.detach().amin(-1, keepdim=True) - 1000 * tau - 1
    capped = torch.minimum(count.clamp_min(0.5), k if isinstance(k, Tensor) else torch.full_like(count, k))
    return soft_topk(torch.where(good, d, out_of_reach), capped, tau) * good

"""The dual of the LML projection: the ν with Σ σ(a + ν) = k, row by row.

For any h with Σ h = k the root is where  Σ (1 - h) σ(a + ν) = Σ h σ(-a - ν):  the weight on entries left out
equals the weight missing from chosen ones. Newton's method is applied to the difference of logarithms,

    G(ν) = log Σ (1 - h) σ(a + ν) - log Σ h σ(-a - ν).

With the hard top-k for h, both sides are sums of positive terms, so no digits cancel however steep the row.
G has a slope between 1/2 and 2 everywhere, and a few steps solve any row. The computation has a fixed length,
so compilers and function transforms can trace it.

The kernels first try h = k / n, with which G is logit(mean σ(a + ν)) - logit(k / n): two sums per step, and
no search for the threshold in smooth rows.
"""

import math

import torch
from torch import Tensor

_STEPS = 5  # Newton steps from the threshold: after four the error is below 1e-8, after five it is rounding


def inverse(tau: float | Tensor, x: Tensor) -> float | Tensor:
    """1 / tau, kept away from 0 and infinity."""
    tiny = torch.finfo(tau.dtype if isinstance(tau, Tensor) else x.dtype).tiny
    if isinstance(tau, Tensor):
        return tau.clamp(tiny, 1 / tiny).reciprocal()
    return 1 / min(max(tau, tiny), 1 / tiny)


def from_threshold(x: Tensor, k: float | Tensor, tau: float | Tensor, look: bool = False) -> Tensor:
    """z = a + ν (*B, n), for rows of any kind. x may be infinite, but not NaN.

    Entries of -inf are never chosen (z = -inf), those of +inf are chosen first; more than k of them share k.
    A row with at most k entries above -inf chooses them all (z = +inf). With `look`, stop once converged.
    """
    inv = inverse(tau, x)
    upper, lower = _threshold(x, k)
    above, tied = x > lower, x == lower
    chosen, n_tied = (mask.sum(-1, keepdim=True, dtype=x.dtype) for mask in (above, tied))
    h = torch.where(tied, (k - chosen) / n_tied, above.to(x.dtype))  # 0 for tied entries if k cuts no tie
    # Centre a between upper and lower, as the distance to the edge of an entry's own side plus half the gap.
    # Differences of neighbours are then exact, and without e^-half neither side of G underflows.
    edge = torch.where(above, upper, lower)
    distance = torch.where(x == edge, 0.0, x - edge).abs_().mul_(inv)
    half = torch.where(upper == lower, 0.0, upper - lower) * (inv / 2)
    near = torch.exp(-distance)
    sides = torch.stack([(1 - h) * near, h * near])
    nu, done = torch.zeros_like(half), torch.zeros_like(half, dtype=torch.bool)
    for _ in range(_STEPS):
        rest = (near * torch.exp(torch.stack([nu, -nu]) - half)).add_(1).reciprocal_()
        terms = sides * rest
        total = terms.sum(-1, keepdim=True)
        slope = terms.mul_(rest).sum(-1, keepdim=True)
        left_out, missing = total.log()
        step = (left_out - missing + 2 * nu) / (slope / total).sum(0)
        nu = torch.where(done, nu, nu - step)
        if look:
            # A step this small leaves an error of about its square: rounding.
            done |= step.abs() <= (3e-4 if x.dtype == torch.float32 else 1e-8)
            if done.all():
                break
    z = nu + torch.where(above, half + distance, -half - distance)
    everything = (lower == -torch.inf) | (k >= x.shape[-1])
    return torch.where(x > -torch.inf, torch.where(everything, torch.inf, z), -torch.inf)


def _threshold(x: Tensor, k: float | Tensor) -> tuple[Tensor, Tensor]:
    """The smallest entry that the hard top-k chooses and the largest that it leaves out, fully or partly."""
    n = x.shape[-1]
    if isinstance(k, Tensor):
        order = x.sort(dim=-1, descending=True).values
        index = torch.stack([k.ceil() - 1, k.floor()]).clamp(0, n - 1).long()
        upper, lower = (order.gather(-1, i.expand(*x.shape[:-1], 1)) for i in index)
        return upper, lower
    first, last = math.ceil(k), min(math.floor(k) + 1, n)  # their ranks, from the largest
    if first + last <= n:
        order = x.topk(last, dim=-1).values
        return order[..., first - 1 : first], order[..., last - 1 : last]
    order = x.topk(n - first + 1, dim=-1, largest=False).values
    return order[..., n - first : n - first + 1], order[..., n - last : n - last + 1]

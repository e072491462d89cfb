"""The dual of the LML projection: the ν with Σ σ(a + ν) = k, row by row.

For any h with Σ h = k the root is where  Σ (1 - h) σ(a + ν) = Σ h σ(-a - ν):  what those left out get is what
those chosen lack. Newton's method finds it on the difference of the logarithms of the two sides,

    G(ν) = log Σ (1 - h) σ(a + ν) - log Σ h σ(-a - ν).

`from_threshold` takes the hard top-k for h. Both sides are then sums of small positive terms, so that no digit
cancels however steep the row; G has a slope between 1/2 and 2 everywhere, and a few steps settle any row. It
is plain arithmetic of a fixed length, which compilers and function transforms see through.
`from_moments` takes h = k / n, with which G is logit(mean σ(a + ν)) - logit(k / n). It needs no search for the
threshold, and does for smooth rows.
"""

import math

import torch
from torch import Tensor

_STEPS = 5  # of Newton from the threshold; the fourth leaves an error below 1e-8, the fifth rounding
_SOFT_SPREAD = 4.0  # rows whose a spreads less than this are smooth enough to start from their moments
_RESOLVED = 1 / 16  # of Σ y that Σ y (1 - y) must be, for the rounding of Σ y to leave ν its digits


def inverse(tau: float | Tensor, x: Tensor) -> float | Tensor:
    """1 / tau, kept away from 0 and infinity."""
    tiny = torch.finfo(tau.dtype if isinstance(tau, Tensor) else x.dtype).tiny
    if isinstance(tau, Tensor):
        return tau.clamp(tiny, 1 / tiny).reciprocal()
    return 1 / min(max(tau, tiny), 1 / tiny)


def from_threshold(x: Tensor, k: float | Tensor, tau: float | Tensor) -> Tensor:
    """z = a + ν (*B, n), for rows of any kind. x may be infinite, and is not NaN.

    Entries of -inf are never chosen (z = -inf), those of +inf first of all; more than k of these share it. A
    row with at most k entries above -inf chooses them all (z = +inf).
    """
    inv = inverse(tau, x)
    lower = _first_left_out(x, k)
    above, tied = x > lower, x == lower
    n_tied = tied.sum(-1, keepdim=True, dtype=x.dtype)
    share = (k - above.sum(-1, keepdim=True, dtype=x.dtype)) / n_tied  # h of the tied ones, 0 if not split
    upper = torch.where(above, x, torch.inf).amin(-1, keepdim=True)
    upper = torch.where(share > 0, lower, upper)
    # a about the middle between upper and lower, as the distance to the edge of an entry's own side and half
    # the gap: differences of neighbours are exact, and e^-half leaves both sides without underflow.
    edge = torch.where(above, upper, lower)
    distance = torch.where(x == edge, 0.0, (x - edge).abs() * inv)
    half = torch.where(upper == lower, 0.0, (upper - lower) * inv / 2)
    near = torch.exp(-distance)
    sides = torch.stack([torch.where(x < lower, near, 0.0), torch.where(above, near, 0.0)])
    split = torch.stack([(1 - share) * n_tied, share * n_tied])
    nu = torch.zeros_like(half)
    for _ in range(_STEPS):
        factor = torch.exp(torch.stack([nu, -nu]) - half)
        rest, tied_rest = 1 / (1 + factor * sides), 1 / (1 + factor)
        terms, tied_terms = sides * rest, split * tied_rest
        total = terms.sum(-1, keepdim=True) + tied_terms
        slope = (terms * rest).sum(-1, keepdim=True) + tied_terms * tied_rest
        nu = nu - (torch.log(total[0] / total[1]) + 2 * nu) / (slope / total).sum(0)
    z = nu + torch.where(above, half + distance, -half - distance)
    everything = (lower == -torch.inf) | (k >= x.shape[-1])
    return torch.where(x > -torch.inf, torch.where(everything, torch.inf, z), -torch.inf)


def _first_left_out(x: Tensor, k: float | Tensor) -> Tensor:
    """The largest entry that the hard top-k leaves out, wholly or in part; the smallest where there is none."""
    n = x.shape[-1]
    if isinstance(k, Tensor):
        index = k.floor().clamp(max=n - 1).long().expand(*x.shape[:-1], 1)
        return x.sort(dim=-1, descending=True).values.gather(-1, index)
    rank = min(math.floor(k) + 1, n)
    if 2 * rank <= n:
        return x.topk(rank, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    return x.topk(n - rank + 1, dim=-1, largest=False, sorted=False).values.amax(-1, keepdim=True)


def solve(x: Tensor, k: float | Tensor, tau: float | Tensor) -> tuple[Tensor, Tensor | None]:
    """y, and z where a row was solved from its threshold: then y alone does not give the slopes.

    On the CPU, where looking at values is free, smooth rows are solved from their moments.
    """
    if x.device.type == "cpu" and (isinstance(k, Tensor) or k < x.shape[-1]):
        if x.numel() == x.shape[-1] and not isinstance(k, Tensor) and not isinstance(tau, Tensor):
            y = _row_from_moments(x, k, tau)
            if y is not None:
                return y, None
        else:
            return _solve_rows(x, k, tau)
    z = from_threshold(x, k, tau)
    return z.sigmoid(), z


def _solve_rows(x: Tensor, k: float | Tensor, tau: float | Tensor) -> tuple[Tensor, Tensor | None]:
    n = x.shape[-1]
    a = x - x.sum(-1, keepdim=True) / n
    a *= inverse(tau, x)
    spread = torch.linalg.vector_norm(a, dim=-1, keepdim=True) / math.sqrt(n)
    smooth = spread <= _SOFT_SPREAD
    if not smooth.any():
        z = from_threshold(x, k, tau)
        return z.sigmoid(), z
    if not smooth.all():  # they keep their places, so that a row's answer never depends on its neighbours
        a, spread = torch.where(smooth, a, 0.0), torch.where(smooth, spread, 0.0)
    y, nu, solved = _from_moments(a, k, spread)
    solved &= smooth
    if solved.all():
        return y, None
    rows = (~solved).nonzero(as_tuple=True)[:-1]
    z = a + nu
    z[rows] = from_threshold(x[rows], _take(k, rows, x.shape), _take(tau, rows, x.shape))
    y[rows] = z[rows].sigmoid()
    return y, z


def _take(value: float | Tensor, rows: tuple[Tensor, ...], shape: torch.Size) -> float | Tensor:
    """Of a number, or a tensor over the rows of x of that shape, what belongs to some of the rows."""
    return value.expand(*shape[:-1], 1)[rows] if isinstance(value, Tensor) else value


def _from_moments(
    a: Tensor, k: float | Tensor, spread: Tensor, max_iters: int = 7
) -> tuple[Tensor, Tensor, Tensor]:
    """y, ν, and which rows are solved."""
    n = a.shape[-1]
    target: float | Tensor = torch.logit(k / n) if isinstance(k, Tensor) else math.log(k / (n - k))
    # E σ(a + ν) for Gaussian a is close to σ(ν / sqrt(1 + π var / 8)).
    nu = target * torch.sqrt(1 + math.pi / 8 * spread**2)
    small = _small_step(a.dtype)
    y = torch.empty_like(a)
    done = torch.zeros_like(spread, dtype=torch.bool)
    for _ in range(max_iters):
        torch.add(a, nu, out=y).sigmoid_()
        total = y.sum(-1, keepdim=True)
        norm = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        slope = torch.addcmul(total, norm, norm, value=-1)
        mean = total / n
        step = (torch.logit(mean) - target) * (torch.addcmul(mean, mean, mean, value=-1) / slope)
        nu = torch.where(done, nu, torch.add(nu, step, alpha=-n))
        done |= (step.abs() * n <= small) & (slope > _RESOLVED * total)
        if done.all():
            break
    return torch.add(a, nu, out=y).sigmoid_(), nu, done


def _row_from_moments(x: Tensor, k: float, tau: float) -> Tensor | None:
    """The common small case, one row, with plain numbers in place of one-element tensors. None if not solved."""
    n = x.shape[-1]
    inv = inverse(tau, x)
    target = math.log(k / (n - k))
    a = x - x.sum().item() / n
    a *= inv
    variance = torch.linalg.vector_norm(a).item() ** 2 / n
    if not variance <= _SOFT_SPREAD**2:
        return None
    nu = target * math.sqrt(1 + math.pi / 8 * variance)
    y = torch.empty_like(a)
    for _ in range(6):
        torch.add(a, nu, out=y).sigmoid_()
        m = y.sum().item() / n
        slope = m - torch.linalg.vector_norm(y).item() ** 2 / n
        if not (m < 1 and slope > _RESOLVED * m):
            return None
        step = (math.log(m / (1 - m)) - target) * m * (1 - m) / slope
        nu -= step
        if abs(step) <= _small_step(x.dtype):
            return torch.add(a, nu, out=y).sigmoid_()
    return None


def _small_step(dtype: torch.dtype) -> float:
    """A Newton step this small leaves an error of about its square: rounding."""
    return 3e-4 if dtype == torch.float32 else 1e-8

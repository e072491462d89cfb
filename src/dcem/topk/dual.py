"""The dual of the LML projection: the ν with Σ σ(a + ν) = k, row by row.

For any h with Σ h = k the root is where  Σ (1 - h) σ(a + ν) = Σ h σ(-a - ν):  the weight on entries left out
equals the weight missing from chosen ones. Newton's method is applied to the difference of logarithms,

    G(ν) = log Σ (1 - h) σ(a + ν) - log Σ h σ(-a - ν).

`from_threshold` takes the hard top-k for h. Both sides are then sums of positive terms, so no digits
cancel however steep the row. G has a slope between 1/2 and 2 everywhere, and a few steps solve any row. The
computation has a fixed length, so compilers and function transforms can trace it.
`solve`, which may look at values, first tries h = k / n, with which G is logit(mean σ(a + ν)) - logit(k / n):
two sums per step, and no search for the threshold in smooth rows.
"""

import math

import torch
from torch import Tensor

_STEPS = 5  # Newton steps from the threshold: after four the error is below 1e-8, after five it is rounding
_SOFT_SPREAD = 4.0  # rows where a spreads less than this are smooth enough to start from their moments
_RESOLVED = (
    1 / 16
)  # least share of the slope Σ y (1 - y) in Σ y: below it, rounding of Σ y costs ν its digits


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
    sign = torch.tensor([1.0, -1.0], dtype=x.dtype, device=x.device).reshape(2, *[1] * x.ndim)
    buffers = [torch.empty_like(sides) if look else None for _ in range(2)]
    nu, done = torch.zeros_like(half), torch.zeros_like(half, dtype=torch.bool)
    for _ in range(_STEPS):
        rest = torch.mul(near, torch.exp(sign * nu - half), out=buffers[0]).add_(1).reciprocal_()
        terms = torch.mul(sides, rest, out=buffers[1])
        total = terms.sum(-1, keepdim=True)
        slope = terms.mul_(rest).sum(-1, keepdim=True)
        step = ((sign * total.log()).sum(0) + 2 * nu) / (slope / total).sum(0)
        nu = torch.where(done, nu, nu - step)
        if look:
            done |= step.abs() <= _small_step(x.dtype)
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


def solve(x: Tensor, k: float | Tensor, tau: float | Tensor) -> tuple[Tensor, Tensor | None]:
    """y, and z unless every row is smooth: in steep rows the slopes cannot be computed from y alone.

    On the CPU, where reading values is free, only rows that are hard to solve take the slow path.
    """
    if x.device.type == "cpu" and (isinstance(k, Tensor) or k < x.shape[-1]):
        if x.numel() > x.shape[-1] or isinstance(k, Tensor) or isinstance(tau, Tensor):
            return _solve_rows(x, k, tau)
        answer = _solve_row(x, k, tau)
        if answer is not None:
            return answer
    z = from_threshold(x, k, tau, look=x.device.type == "cpu")
    return z.sigmoid(), z


def _solve_rows(x: Tensor, k: float | Tensor, tau: float | Tensor) -> tuple[Tensor, Tensor | None]:
    n = x.shape[-1]
    inv = inverse(tau, x)
    a = (x - x.sum(-1, keepdim=True) / n).mul_(inv)
    spread = torch.linalg.vector_norm(a, dim=-1, keepdim=True) / math.sqrt(n)
    target: float | Tensor = torch.logit(k / n) if isinstance(k, Tensor) else math.log(k / (n - k))
    # E σ(a + ν) for Gaussian a is close to σ(ν / sqrt(1 + π var / 8)).
    nu = target * torch.sqrt(1 + math.pi / 8 * spread**2)
    smooth = spread <= _SOFT_SPREAD
    all_smooth = bool(smooth.all())
    if not all_smooth:  # steep rows start halfway between chosen and other entries
        upper, lower = _threshold(x, k)
        a = torch.where(smooth, a, (x - (lower + (upper - lower) / 2)).mul_(inv))
        nu = torch.where(smooth, nu, 0.0)
    y, nu, solved = _newton(a, target, nu, spread.isfinite())
    if solved.all():
        return y, None if all_smooth else a.add_(nu)
    rows = (~solved).nonzero(as_tuple=True)[:-1]
    z = a.add_(nu)
    z[rows] = from_threshold(x[rows], _take(k, rows, x.shape), _take(tau, rows, x.shape), look=True)
    y[rows] = z[rows].sigmoid()
    return y, z


def _take(value: float | Tensor, rows: tuple[Tensor, ...], shape: torch.Size) -> float | Tensor:
    """Select some rows of a setting: a number, or a tensor over the rows of x of that shape."""
    return value.expand(*shape[:-1], 1)[rows] if isinstance(value, Tensor) else value


def _newton(
    a: Tensor, target: float | Tensor, nu: Tensor, solved: Tensor, max_iters: int = 7
) -> tuple[Tensor, Tensor, Tensor]:
    """y, ν, and which rows are solved. Each row is solved independently of the others."""
    n = a.shape[-1]
    small = _small_step(a.dtype)
    y = torch.empty_like(a)
    done = ~solved
    for _ in range(max_iters):
        torch.add(a, nu, out=y).sigmoid_()
        total = y.sum(-1, keepdim=True)
        norm = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        slope = torch.addcmul(total, norm, norm, value=-1)
        mean = total / n
        step = (torch.logit(mean) - target) * (torch.addcmul(mean, mean, mean, value=-1) / slope)
        nu = torch.where(done, nu, torch.add(nu, step, alpha=-n))
        resolved = slope > _RESOLVED * total
        solved = solved & (resolved | done)
        done = done | ~resolved | (step.abs() * n <= small)
        if done.all():
            break
    return torch.add(a, nu, out=y).sigmoid_(), nu, solved & done


def _solve_row(x: Tensor, k: float, tau: float) -> tuple[Tensor, Tensor | None] | None:
    """The common small case: one row, with numbers instead of one-element tensors. None if not solved."""
    n = x.shape[-1]
    inv = inverse(tau, x)
    target = math.log(k / (n - k))
    a = (x - x.sum().item() / n).mul_(inv)
    variance = torch.linalg.vector_norm(a).item() ** 2 / n
    nu = target * math.sqrt(1 + math.pi / 8 * variance)
    smooth = variance <= _SOFT_SPREAD**2
    if not smooth:
        upper, lower = _threshold(x, k)
        a = (x - (lower + (upper - lower) / 2)).mul_(inv)
        nu = 0.0
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
            return torch.add(a, nu, out=y).sigmoid_(), None if smooth else a.add_(nu)
    return None


def _small_step(dtype: torch.dtype) -> float:
    """A Newton step this small leaves an error of about its square: rounding."""
    return 3e-4 if dtype == torch.float32 else 1e-8

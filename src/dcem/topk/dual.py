"""The dual of the LML projection: the ν with Σ σ(a + ν) = k, row by row.

Newton's method on F(ν) = logit(mean σ(a + ν)) - logit(k / n), which is nearly linear; rows that it does not
settle are kept inside a bracket. On a CUDA device one fused kernel does it all (`dcem.topk.lml_triton`).
"""

import math

import torch
from torch import Tensor

try:
    from dcem.topk import lml_triton as fused
except ImportError:  # no Triton here
    fused = None  # type: ignore[assignment]

_SATURATED = 1000.0  # beyond this many units from the threshold a sigmoid is 0 or 1 in every dtype
_SOFT_SPREAD = 4.0  # rows whose a spreads less than this are smooth enough to start from their moments


def use_fused(x: Tensor) -> bool:
    """Does the Triton kernel do this one?"""
    return fused is not None and x.is_cuda and x.shape[-1] <= fused.MAX_ROW


def solve(
    x: Tensor, k: float | Tensor, tau: float | Tensor, standardize: bool, finite_only: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """y, mean and inv, by the fused kernel or, for at most half of the entries, by `_solve_lower_half`.

    Choosing k is leaving out n - k: y(x, k) = 1 - y(-x, n - k). The smaller of the two is solved, since the
    other's sum would round away what is left over.
    """
    n = x.shape[-1]
    if use_fused(x):
        return fused.forward(x, k, tau, standardize, finite_only)
    if not isinstance(k, Tensor):
        if 2 * k <= n:
            return _solve_lower_half(x, k, tau, standardize)
        y, mean, inv = _solve_lower_half(-x, n - k, tau, standardize)
        return 1 - y, -mean, inv
    most, everything = 2 * k > n, k >= n
    smaller = torch.where(everything, 0.5, torch.where(most, n - k, k))
    y, mean, inv = _solve_lower_half(torch.where(most, -x, x), smaller, tau, standardize)
    y = torch.where(everything, 1.0, torch.where(most, 1 - y, y))
    return y, torch.where(most, -mean, mean), inv


def _solve_lower_half(
    x: Tensor, k: float | Tensor, tau: float | Tensor, standardize: bool
) -> tuple[Tensor, Tensor, Tensor]:
    n = x.shape[-1]
    if (
        x.numel() == n
        and x.device.type == "cpu"
        and not isinstance(k, Tensor)
        and not isinstance(tau, Tensor)
    ):
        answer = _solve_one_row(x, k, tau, standardize)
        if answer is not None:
            return answer
    mean, d, inv = centre_and_scale(x, tau, standardize)
    target: float | Tensor = torch.logit(k / n) if isinstance(k, Tensor) else math.log(k / (n - k))
    # On the CPU a look at the values is free, and a smooth row needs no search for its threshold.
    look = x.device.type == "cpu"
    a = d * inv
    spread = torch.linalg.vector_norm(a, dim=-1, keepdim=True) / math.sqrt(n)
    smooth = spread <= _SOFT_SPREAD
    if look and smooth.any() and not smooth.all():
        # Each kind by itself, so that a row's answer never depends on its neighbours.
        y = torch.empty_like(x)
        for kind in (smooth, ~smooth):
            rows = kind.squeeze(-1).nonzero(as_tuple=True)
            k_, tau_ = take(k, rows, x.shape), take(tau, rows, x.shape)
            y[rows] = _solve_lower_half(x[rows], k_, tau_, standardize)[0]
        return y, mean, inv
    if look and smooth.all():
        # E σ(a + ν) for Gaussian a is close to σ(ν / sqrt(1 + π var / 8)).
        y, converged = _newton(a, target, target * torch.sqrt(1 + math.pi / 8 * spread**2))
    elif look:
        y, converged = _newton(_around_threshold(x, k, inv), target, torch.zeros_like(spread))
    else:
        y, converged = _bracketed(_around_threshold(x, k, inv), k, target, look), None
    if converged is not None and not converged.all():
        rows = (~converged).nonzero(as_tuple=True)[:-1]
        hard = [take(v, rows, x.shape) for v in (k, target, inv)]
        y[rows] = _bracketed(_around_threshold(x[rows], hard[0], hard[2]), hard[0], hard[1], look)
    return y, mean, inv


def _solve_one_row(
    x: Tensor, k: float, tau: float, standardize: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The common small case, one row on the CPU, with plain numbers in place of one-element tensors.

    None when plain Newton steps do not settle it.
    """
    n = x.shape[-1]
    eps = torch.finfo(x.dtype).eps
    rows = (*x.shape[:-1], 1)
    target = math.log(k / (n - k))
    mean = x.sum().item() / n
    d = x - mean
    std = torch.linalg.vector_norm(d, dtype=torch.float64).item() / math.sqrt(n)
    inv = 1 / tau
    if standardize:
        inv = inv / std if std > 4 * eps * abs(mean) else 0.0
    spread = std * inv
    if spread <= _SOFT_SPREAD:
        a = d * inv
        nu = target * math.sqrt(1 + math.pi / 8 * spread**2)
    else:
        a = _around_threshold(x, k, inv)
        nu = 0.0
    y = torch.empty_like(a)
    for _ in range(6):
        torch.add(a, nu, out=y).sigmoid_()
        m = y.sum().item() / n
        slope = m - torch.linalg.vector_norm(y).item() ** 2 / n
        if not (0 < m < 1 and slope > 0):
            return None
        step = (math.log(m / (1 - m)) - target) * m * (1 - m) / slope
        nu -= step
        if abs(step) <= _small_step(x.dtype):
            return (
                torch.add(a, nu, out=y).sigmoid_(),
                torch.full(rows, mean, dtype=x.dtype),
                torch.full(rows, inv, dtype=x.dtype),
            )
    return None


def centre_and_scale(x: Tensor, tau: float | Tensor, standardize: bool) -> tuple[Tensor, Tensor, Tensor]:
    """mean(x), d = x - mean, and inv with a = d inv; a standardised row without information has inv = 0."""
    mean = x.sum(-1, keepdim=True) / x.shape[-1]
    d = x - mean
    if isinstance(tau, Tensor):
        tau = tau.clamp_min(1e-30)
    if not standardize:
        return mean, d, torch.ones_like(mean) / tau
    # In double precision, since squares of small or large values leave the range of float32.
    norm = torch.linalg.vector_norm(d, dim=-1, keepdim=True, dtype=torch.float64)
    # Relative to the size of the values: an absolute threshold would break for tiny or shifted ones.
    noise = 4 * torch.finfo(x.dtype).eps * math.sqrt(x.shape[-1])
    informative = norm > noise * mean.abs()
    inv = math.sqrt(x.shape[-1]) / (torch.where(informative, norm, 1.0) * tau)
    return mean, d, torch.where(informative, inv, 0.0).to(x.dtype)


def _small_step(dtype: torch.dtype) -> float:
    """A Newton step this small leaves an error of about its square: rounding."""
    return 3e-4 if dtype == torch.float32 else 1e-8


def _around_threshold(x: Tensor, k: float | Tensor, inv: float | Tensor) -> Tensor:
    """a = (x - c) inv with c between the k-th and (k+1)-th largest entries of x; the root is then near 0.

    Near the threshold x - c is exact, which keeps the root accurate for rows of any offset and scale.
    """
    n = x.shape[-1]
    if isinstance(k, Tensor):
        order = x.sort(dim=-1, descending=True).values
        index = torch.stack([k.ceil() - 1, k.floor()]).clamp(0, n - 1).long()
        upper, lower = (order.gather(-1, i.expand(*x.shape[:-1], 1)) for i in index)
    else:
        upper = x.kthvalue(n - math.ceil(k) + 1, dim=-1, keepdim=True).values
        lower = x.kthvalue(n - math.floor(k), dim=-1, keepdim=True).values
    centre = torch.nan_to_num(lower + (upper - lower) / 2)
    return torch.nan_to_num((x - centre) * inv, nan=0.0).clamp_(-_SATURATED, _SATURATED)


def _newton(a: Tensor, target: float | Tensor, nu: Tensor, max_iters: int = 7) -> tuple[Tensor, Tensor]:
    """Plain Newton steps on F from nu; which rows have converged comes back with the answer."""
    n = a.shape[-1]
    small = _small_step(a.dtype)
    y = torch.empty_like(a)
    done = torch.zeros_like(nu, dtype=torch.bool)
    for _ in range(max_iters):
        torch.add(a, nu, out=y).sigmoid_()
        total = y.sum(-1, keepdim=True)
        norm = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        slope = torch.addcmul(total, norm, norm, value=-1).clamp_min_(torch.finfo(a.dtype).tiny)
        mean = total / n
        step = (torch.logit(mean) - target) * (torch.addcmul(mean, mean, mean, value=-1) / slope)
        nu = torch.where(done, nu, torch.add(nu, step, alpha=-n))
        done |= step.abs() * n <= small
        if done.all():
            break
    torch.add(a, nu, out=y).sigmoid_()
    return y, done


def _bracketed(
    a: Tensor, k: float | Tensor, target: float | Tensor, look: bool, max_iters: int = 64
) -> Tensor:
    """Newton kept inside a bracket, for any row. With `look`, stops as soon as every row is done."""
    n = a.shape[-1]
    eps = torch.finfo(a.dtype).eps
    lo = target - a.amax(-1, keepdim=True)
    hi = target - a.amin(-1, keepdim=True)
    nu = torch.zeros_like(lo).clamp(lo, hi)
    for _ in range(max_iters):
        y = torch.sigmoid(a + nu)
        total = y.sum(-1, keepdim=True)
        excess = total - k
        done = excess.abs() <= 2 * eps * k
        if look and done.all():
            break
        hi = torch.where(excess > 0, nu, hi)
        lo = torch.where(excess < 0, nu, lo)
        mean = total / n
        slope = (y * torch.sigmoid(-a - nu)).sum(-1, keepdim=True) / n
        step = (torch.logit(mean) - target) * mean * (1 - mean) / slope
        newton = nu - step
        inside = (newton > lo) & (newton < hi)
        nu = torch.where(done, nu, torch.where(inside, newton, lo + (hi - lo) / 2))
    return torch.sigmoid(a + nu)


def take(value: float | Tensor, rows: tuple[Tensor, ...], shape: torch.Size) -> float | Tensor:
    """Of a number, or a tensor over the rows of x of that shape, what belongs to some of the rows."""
    return value.expand(*shape[:-1], 1)[rows] if isinstance(value, Tensor) else value

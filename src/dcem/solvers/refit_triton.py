# mypy: allow-untyped-defs
"""Elite weights and moments on CUDA as one Triton kernel forward and one backward: one program per row.

The formulas are those of `native.cpp`. What there is one number of per sample is in registers, its statistics
in double precision; of the samples themselves, a block of columns at a time, in their own.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dcem.solvers.refit_native import Settings
from dcem.topk.dual_triton import logits, nth_largest, solve
from dcem.topk.lml_native import HALF, STANDARDIZE
from dcem.topk.standardize import DIGITS

MAX_SAMPLES = 4096  # more do not fit the registers of one program
_TILE = 4096  # samples × columns at a time
_STATS = tl.constexpr(4)  # numbers that the soft top-k keeps of a row


@triton.jit
def _double(setting):
    """A number with all its digits, also where the interpreter passes it on as one of Python's."""
    return tl.full((), 0.0, tl.float64) + setting


@triton.jit
def _scale(x, good, count, mean, spread, STANDARDIZE: tl.constexpr, HALF: tl.constexpr, EPS, TINY):
    """Centre and 1 / scale of a row, and of how many entries the scale is; mean and spread are of all."""
    n = count.to(tl.float64)
    centre, inv, of = mean, _double(1.0), n
    if STANDARDIZE:
        informative = spread > tl.maximum(4.0 * EPS * tl.abs(mean), TINY)
        inv = tl.where(informative, 1.0 / spread, 0.0)
    if HALF:  # of the largest entries the better half is the upper one: `by_better_half`
        centre = nth_largest(x, good, count - count // 2).to(tl.float64)  # of two in the middle, the larger
        centre = tl.where(count > 0, centre, 0.0)
        d = tl.where(good, x.to(tl.float64) - centre, 0.0)
        rounding = tl.maximum(4.0 * EPS * tl.max(tl.abs(x), 0).to(tl.float64), TINY)
        better = good & (d >= tl.where(tl.max(d, 0) > rounding, 0.0, float("-inf")))
        of = tl.sum(better.to(tl.float64), 0)
        scale = tl.sqrt(tl.sum(tl.where(better, d * d, 0.0), 0) / tl.maximum(of, 1.0))
        inv = tl.where(scale > rounding, 1.0 / scale, 0.0)
    return centre, inv, of


@triton.jit
def _steepness(inv, tau, TINY: tl.constexpr):
    """inv / tau, kept away from 0 and infinity."""
    return tl.minimum(inv / tl.maximum(_double(tau), TINY), 1.0 / TINY)


@triton.jit
def _rate(w, n, slowest, RANK_MU: tl.constexpr):
    """Σw, Σw², how much of the last variance they replace, and its derivative by μ = (Σw)² / Σw²."""
    w = w.to(tl.float64)
    total, squares = tl.sum(w, 0), tl.sum(w * w, 0)
    rate, slope = _double(1.0), _double(0.0)
    if RANK_MU:
        mu = total * total / squares
        wide = _double(n) + 2.0
        top, below, factor = mu - 1.75 + 1.0 / mu, wide * wide + mu, 2.0 * wide / 3.0
        free = factor * top / below
        rate = tl.minimum(tl.maximum(free, _double(slowest)), 1.0)
        slope = tl.where(free == rate, factor * ((1.0 - 1.0 / (mu * mu)) - top / below) / below, 0.0)
    return total, squares, rate, slope


@triton.jit
def _forward_kernel(
    values_ptr, u_ptr, last_mean_ptr, last_sigma_ptr, floors_ptr, weights_ptr, mean_ptr, sigma_ptr, keep_ptr,
    N, k: tl.float64, tau: tl.float64, slopes_at: tl.float64, slowest: tl.float64, floor: tl.float64,
    near: tl.float64, digits: tl.float64, n: tl.constexpr, WARMER: tl.constexpr, STANDARDIZE: tl.constexpr,
    HALF: tl.constexpr, RANK_MU: tl.constexpr, FLOORS: tl.constexpr, EPS: tl.constexpr, TINY: tl.constexpr,
    SMALL: tl.constexpr, SAMPLES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    sample = tl.arange(0, SAMPLES)
    present = sample < N
    values = tl.load(values_ptr + row * N + sample, mask=present, other=0.0)
    number = values.dtype
    good = present & (tl.abs(values) < float("inf"))
    x = tl.where(good, -values, 0.0)  # the lowest values are the best
    count = tl.sum(good.to(tl.int32), 0)
    some = tl.maximum(count, 1).to(tl.float64)
    mean = tl.sum(x.to(tl.float64), 0) / some
    origin = mean.to(number)
    away = tl.where(good, x.to(tl.float64) - origin, 0.0)
    spread = tl.sqrt(tl.sum(away * away, 0) / some)
    gate = spread > digits * EPS * tl.abs(mean)
    centre, inv, of = _scale(x, good, count, mean, spread, STANDARDIZE, HALF, EPS, TINY)

    k = _double(k).to(number)
    some, spread = some.to(number), spread.to(number)
    steep = _steepness(inv, tau, TINY).to(number)
    upper, lower, nu = solve(x, good, some, k, origin, spread, steep, SMALL)
    z = logits(x, good, upper, lower, steep, nu)
    w = tl.sigmoid(z)
    tl.store(weights_ptr + row * N + sample, w, mask=present)
    if WARMER:
        steep = _steepness(inv, slopes_at, TINY).to(number)
        upper, lower, nu = solve(x, good, some, k, origin, spread, steep, SMALL)
        z = logits(x, good, upper, lower, steep, nu)
    keep_ptr += row * (N + _STATS + 2 * n)
    tl.store(keep_ptr + sample, z, mask=present)
    keep_ptr += N
    tl.store(keep_ptr, centre.to(number))
    tl.store(keep_ptr + 1, inv.to(number))
    tl.store(keep_ptr + 2, gate.to(number))
    tl.store(keep_ptr + 3, of.to(number))

    total, _, rate, _ = _rate(w, n, slowest, RANK_MU)
    rest = (1.0 - rate).to(number)
    rate = rate.to(number)
    p = (w / total.to(number))[:, None]
    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < n
        mask = present[:, None] & inside[None, :]
        u = tl.load(u_ptr + row * N * n + sample[:, None] * n + column[None, :], mask=mask, other=0.0)
        m = tl.sum(p * u, 0)
        m += tl.sum(p * (u - m[None, :]), 0)  # what rounding lost, where the mean is far from 0
        d = u - m[None, :]
        variance = tl.sum(p * d * d, 0)
        cell = row * n + column
        if RANK_MU:
            move = m - tl.load(last_mean_ptr + cell, mask=inside, other=0.0)
            last = tl.load(last_sigma_ptr + cell, mask=inside, other=0.0)
            around = variance + move * move
            tl.store(keep_ptr + _STATS + n + column, around - last * last, mask=inside)
            variance = rate * around + rest * last * last
        close = _double(near).to(number) * m
        least = _double(floor).to(number)
        if FLOORS:
            least = tl.load(floors_ptr + cell, mask=inside, other=0.0)
        least += close * close
        above = variance > least
        s = tl.sqrt(tl.where(above, variance, least))
        s = tl.where(variance == variance, s, variance)  # NaN stays
        tl.store(mean_ptr + cell, m, mask=inside)
        tl.store(sigma_ptr + cell, s, mask=inside)
        tl.store(keep_ptr + _STATS + column, tl.where(above, 0.5 / s, 0.0), mask=inside)


@triton.jit
def _backward_kernel(
    values_ptr, u_ptr, last_mean_ptr, last_sigma_ptr, weights_ptr, mean_ptr, keep_ptr, gweights_ptr,
    gmean_ptr, gsigma_ptr, gvalues_ptr, gu_ptr, glast_mean_ptr, glast_sigma_ptr, N, tau: tl.float64,
    slowest: tl.float64, n: tl.constexpr, STANDARDIZE: tl.constexpr, HALF: tl.constexpr,
    RANK_MU: tl.constexpr, GWEIGHTS: tl.constexpr, TINY: tl.constexpr, SAMPLES: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    sample = tl.arange(0, SAMPLES)
    present = sample < N
    w = tl.load(weights_ptr + row * N + sample, mask=present, other=0.0)
    number = w.dtype
    keep_ptr += row * (N + _STATS + 2 * n)
    z = tl.abs(tl.load(keep_ptr + sample, mask=present, other=float("inf")))
    keep_ptr += N

    # The moments. With c the mean, or by rank-mu the last one, p = w / Σw, and g the gradient of
    # Σ p (u - c)²: gu = p (gmean + 2 (u - c) g), and gw that of p, d gmean + (u - c)² g, less its mean and
    # over Σw.
    total, squares, rate, slope = _rate(w, n, slowest, RANK_MU)
    rest = (1.0 - rate).to(number)
    rate = rate.to(number)
    p = w / total.to(number)
    gp = tl.zeros_like(w)
    grate = _double(0.0)
    for start in range(0, n, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < n
        cell = row * n + column
        m = tl.load(mean_ptr + cell, mask=inside, other=0.0)
        gm = tl.load(gmean_ptr + cell, mask=inside, other=0.0)
        g = tl.load(gsigma_ptr + cell, mask=inside, other=0.0)
        g *= tl.load(keep_ptr + _STATS + column, mask=inside, other=0.0)
        gvar = g * rate
        c = m
        if RANK_MU:
            c = tl.load(last_mean_ptr + cell, mask=inside, other=0.0)
            last = tl.load(last_sigma_ptr + cell, mask=inside, other=0.0)
            excess = tl.load(keep_ptr + _STATS + n + column, mask=inside, other=0.0)
            grate += tl.sum(g.to(tl.float64) * excess, 0)
            tl.store(glast_mean_ptr + cell, 2.0 * gvar * (c - m), mask=inside)
            tl.store(glast_sigma_ptr + cell, 2.0 * rest * g * last, mask=inside)
        mask = present[:, None] & inside[None, :]
        at = row * N * n + sample[:, None] * n + column[None, :]
        u = tl.load(u_ptr + at, mask=mask, other=0.0)
        d = u - c[None, :]
        gp += tl.sum(tl.where(mask, (u - m[None, :]) * gm[None, :] + d * d * gvar[None, :], 0.0), 1)
        tl.store(gu_ptr + at, p[:, None] * (gm[None, :] + 2.0 * d * gvar[None, :]), mask=mask)
    average = tl.sum((p * gp).to(tl.float64), 0)
    share = total / squares
    gmu = grate * slope * 2.0 * share
    gw = ((gp - average) / total + gmu * (1.0 - w * share)).to(number)
    if GWEIGHTS:
        gw += tl.load(gweights_ptr + row * N + sample, mask=present, other=0.0)

    # The soft top-k: with s = y (1 - y), that of a is s ⊙ (gw - <s, gw> / Σs).
    values = tl.load(values_ptr + row * N + sample, mask=present, other=0.0)
    good = present & (tl.abs(values) < float("inf"))
    x = tl.where(good, -values, 0.0)
    # s is e^-|z| / (1 + e^-|z|)², here relative to the largest, so that it never underflows.
    least = tl.min(z, 0)
    passes = (tl.load(keep_ptr + 2) != 0.0) & (least < float("inf"))  # all chosen: decided once and for all
    peak = tl.exp(-least)
    relative = tl.where(good, tl.exp(least - z), 0.0)
    below = 1.0 + peak * relative
    s = relative / (below * below)
    gk = tl.sum(s * gw, 0) / tl.sum(s, 0)
    gx = s * peak * (gw - gk) * _steepness(1.0, tau, TINY).to(number)
    if STANDARDIZE or HALF:
        count = tl.sum(good.to(number), 0)
        centre, scale, of = tl.load(keep_ptr), tl.load(keep_ptr + 1), tl.load(keep_ptr + 3)
        unit = tl.where(good, x - centre, 0.0) * scale
        along = tl.sum(gx * unit, 0) / of
        edge = tl.where(of == count, float("-inf"), centre)
        gx -= tl.where(good & (x >= edge), unit * along, 0.0)
        if HALF:  # the centre is an entry: where several are equal, they share its gradient
            ties = good & (x == centre)
            gx -= tl.where(ties, tl.sum(gx, 0) / tl.sum(ties.to(number), 0), 0.0)
        # A shift of the row changes nothing: hold that exactly, since what is left is divided by the spread.
        gx = (gx - tl.sum(gx, 0) / count) * scale
    gx = tl.where(passes, tl.where(good, gx, 0.0), 0.0)
    tl.store(gvalues_ptr + row * N + sample, -gx, mask=present)


def forward(
    values: Tensor,
    u: Tensor,
    last_mean: Tensor | None,
    last_sigma: Tensor | None,
    floors: Tensor | None,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `refit_native.forward`; what to keep is in an order of its own."""
    how = Settings(*settings)
    *batch, N, n = u.shape
    values, u = values.contiguous(), u.contiguous()
    last = [u if x is None else x.contiguous() for x in (last_mean, last_sigma)]
    floors = u if floors is None else floors.expand(*batch, n).contiguous()
    weights, mean = torch.empty_like(values), u.new_empty(*batch, n)
    sigma, keep = torch.empty_like(mean), u.new_empty(*batch, N + _STATS.value + 2 * n)
    with torch.cuda.device_of(u):
        _forward_kernel[(u.numel() // (N * n),)](
            values, u, *last, floors, weights, mean, sigma, keep, N, how.k, how.tau, how.slopes_at,
            how.slowest, how.floor, how.near, DIGITS,
            WARMER=how.slopes_at > how.tau,
            FLOORS=floors is not u,
            EPS=torch.finfo(u.dtype).eps,
            SMALL=1e-8 if u.dtype == torch.float64 else 3e-4,
            **_launch(u, last_mean, how),
        )  # fmt: skip
    return weights, mean, sigma, keep


def backward(
    values: Tensor,
    u: Tensor,
    last_mean: Tensor | None,
    last_sigma: Tensor | None,
    weights: Tensor,
    mean: Tensor,
    keep: Tensor,
    gweights: Tensor | None,
    gmean: Tensor,
    gsigma: Tensor,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """As `refit_native.backward`."""
    how = Settings(*settings)
    *_, N, n = u.shape
    values, u, gmean, gsigma = (x.contiguous() for x in (values, u, gmean, gsigma))
    last = [u if x is None else x.contiguous() for x in (last_mean, last_sigma)]
    given = u if gweights is None else gweights.contiguous()
    gvalues, gu = torch.empty_like(values), torch.empty_like(u)
    glast_mean, glast_sigma = (None if last_mean is None else torch.empty_like(mean) for _ in range(2))
    with torch.cuda.device_of(u):
        _backward_kernel[(u.numel() // (N * n),)](
            values, u, *last, weights, mean, keep, given, gmean, gsigma, gvalues, gu,
            *(u if x is None else x for x in (glast_mean, glast_sigma)),
            N, how.slopes_at or how.tau, how.slowest,
            GWEIGHTS=gweights is not None,
            **_launch(u, last_mean, how),
        )  # fmt: skip
    return gvalues, gu, glast_mean, glast_sigma


def _launch(u: Tensor, last_mean: Tensor | None, how: Settings) -> dict[str, Any]:
    samples = triton.next_power_of_2(u.shape[-2])
    columns = min(triton.next_power_of_2(u.shape[-1]), max(_TILE // samples, 8))
    return {
        "n": u.shape[-1],  # compiled for each, since then loads are wide and addresses take few registers
        "STANDARDIZE": bool(how.flags & STANDARDIZE),
        "HALF": bool(how.flags & HALF),
        "RANK_MU": last_mean is not None,
        "TINY": torch.finfo(u.dtype).tiny,
        "SAMPLES": samples,
        "COLUMNS": columns,
        "num_warps": min(max(samples * columns // 1024, samples // 256, 1), 16),
    }

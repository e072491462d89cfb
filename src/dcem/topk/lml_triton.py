"""The LML projection as one Triton kernel forward and one backward: one program per row, in registers.

What is kept of a row is where its threshold is: x, which autograd has anyway, then gives z again.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dcem.topk.dual_triton import logits, solve

MAX_ROW = 16384  # a longer row does not fit the registers of one program


@triton.jit
def _forward_kernel(
    x_ptr,
    k_ptr,
    tau_ptr,
    y_ptr,
    upper_ptr,
    lower_ptr,
    inv_ptr,
    nu_ptr,
    k_number,
    tau_number,
    n,
    k_stride,
    tau_stride,
    K_IS_TENSOR: tl.constexpr,
    TAU_IS_TENSOR: tl.constexpr,
    STANDARDIZE: tl.constexpr,
    FINITE_ONLY: tl.constexpr,
    EPS: tl.constexpr,
    TINY: tl.constexpr,
    SMALL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    present = column < n
    x = tl.load(x_ptr + row * n + column, mask=present, other=0.0)
    number = x.dtype
    # Entries that are not finite get weight zero, except +inf, which is chosen first.
    good = present & (x - x == 0.0)
    first = present & (x == float("inf"))
    x = tl.where(good, x, 0.0)
    count = tl.maximum(tl.sum(good.to(number), 0), 1.0)
    zero = tl.full((), 0.0, number)
    k = zero + (tl.load(k_ptr + row * k_stride) if K_IS_TENSOR else k_number)
    share = zero
    if not FINITE_ONLY:
        n_first = tl.sum(first.to(number), 0)
        share = tl.minimum(k / tl.maximum(n_first, 1.0), 1.0)
        k = k - n_first
    nothing = k <= 0.0
    tau = zero + (tl.load(tau_ptr + row * tau_stride) if TAU_IS_TENSOR else tau_number)
    # Choosing k means leaving out count - k. Solve for the smaller: the sum for the larger loses digits.
    everything = k >= count
    most = 2.0 * k > count
    k = tl.where(everything | nothing, count, tl.where(most, count - k, k))
    sign = tl.where(most, -1.0, 1.0)
    x = x * sign

    mean = tl.sum(x, 0) / count
    d = tl.where(good, x - mean, 0.0)
    # Scaled, since squares of small or large values leave the range of float32.
    largest = tl.max(tl.abs(d), 0)
    unit = d / tl.where(largest > 0.0, largest, 1.0)
    std = largest * tl.sqrt(tl.sum(unit * unit, 0) / count)
    inv = 1.0 / tl.maximum(tau, TINY)
    if STANDARDIZE:
        informative = std > 4.0 * EPS * tl.abs(mean)
        inv = tl.where(informative, inv / tl.where(informative, std, 1.0), 0.0)
    inv = tl.minimum(inv, 1.0 / TINY)

    upper, lower, nu = solve(x, good, count, k, mean, std, inv, SMALL)
    upper, lower = tl.where(most, -lower, upper), tl.where(most, -upper, lower)
    nu = tl.where(everything, float("inf"), tl.where(nothing, float("-inf"), nu * sign))
    y = tl.sigmoid(logits(x * sign, good, upper, lower, inv, nu))
    if not FINITE_ONLY:
        y = tl.where(first, share, y)
    tl.store(y_ptr + row * n + column, y, mask=present)
    tl.store(upper_ptr + row, upper)
    tl.store(lower_ptr + row, lower)
    tl.store(inv_ptr + row, inv)
    tl.store(nu_ptr + row, nu)


@triton.jit
def _backward_kernel(
    g_ptr,
    x_ptr,
    upper_ptr,
    lower_ptr,
    inv_ptr,
    nu_ptr,
    gx_ptr,
    gk_ptr,
    gaa_ptr,
    n,
    STANDARDIZE: tl.constexpr,
    WITH_D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    present = column < n
    at = row * n + column
    g = tl.load(g_ptr + at, mask=present, other=0.0)
    x = tl.load(x_ptr + at, mask=present, other=0.0)
    inv, nu = tl.load(inv_ptr + row), tl.load(nu_ptr + row)
    good = present & (x - x == 0.0)
    upper, lower = tl.load(upper_ptr + row), tl.load(lower_ptr + row)
    z = logits(x, good, upper, lower, inv, nu)
    # s = y (1 - y) is e^-|z| / (1 + e^-|z|)², here relative to the largest, so that it never underflows.
    least = tl.min(tl.abs(z), 0)
    least = tl.where(least < float("inf"), least, 0.0)  # no entry is undecided
    relative, peak = tl.exp(least - tl.abs(z)), tl.exp(-least)
    below = 1.0 + peak * relative
    s = relative / (below * below)
    along, total = tl.split(tl.sum(tl.join(s * g, s), 0))
    gk = along / tl.where(total > 0.0, total, 1.0)
    ga = s * peak * (g - gk)
    if WITH_D:
        gaa = tl.sum(ga * tl.where(s > 0.0, z, 0.0), 0)
        if STANDARDIZE:
            count = tl.maximum(tl.sum(good.to(g.dtype), 0), 1.0)
            a = tl.where(good, logits(x, good, upper, lower, inv, 0.0), 0.0)
            d = tl.where(good, a - tl.sum(a, 0) / count, 0.0)
            square = tl.sum(d * d, 0)
            ga = ga - d * (gaa / tl.where(square > 0.0, square, 1.0))
            ga = tl.where(good, ga - tl.sum(ga, 0) / count, 0.0)  # a shift of the row changes nothing
        tl.store(gaa_ptr + row, gaa)
    tl.store(gk_ptr + row, gk)
    tl.store(gx_ptr + at, ga * inv, mask=present)


def forward(
    x: Tensor, k: float | Tensor, tau: float | Tensor, standardize: bool, finite_only: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """y = σ(z), and per row the upper and the lower edge, inv and ν: see `dual_triton.logits`."""
    x = x.contiguous()
    n = x.shape[-1]
    rows = (*x.shape[:-1], 1)
    y, upper, lower, inv, nu = torch.empty_like(x), *(x.new_empty(rows) for _ in range(4))
    k_tensor, k_stride, k_number = _per_row(k, x, rows)
    tau_tensor, tau_stride, tau_number = _per_row(tau, x, rows)
    double = x.dtype == torch.float64
    with torch.cuda.device_of(x):
        _forward_kernel[(x.numel() // n,)](
            x, k_tensor, tau_tensor, y, upper, lower, inv, nu, k_number, tau_number, n, k_stride, tau_stride,
            K_IS_TENSOR=k_tensor is not x,
            TAU_IS_TENSOR=tau_tensor is not x,
            STANDARDIZE=standardize,
            FINITE_ONLY=finite_only,
            EPS=torch.finfo(x.dtype).eps,
            TINY=torch.finfo(x.dtype).tiny,
            SMALL=1e-8 if double else 3e-4,
            **_registers(n, double),
            **_launch(n, double),
        )  # fmt: skip
    return y, upper, lower, inv, nu


def backward(
    g: Tensor,
    x: Tensor,
    upper: Tensor,
    lower: Tensor,
    inv: Tensor,
    nu: Tensor,
    standardize: bool,
    with_d: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients: for x, for k per row, and <ga, a> per row, from which the one for tau follows."""
    g, x = g.contiguous(), x.contiguous()
    n = x.shape[-1]
    gx, gk, gaa = torch.empty_like(x), torch.empty_like(nu), torch.empty_like(nu)
    with torch.cuda.device_of(x):
        _backward_kernel[(x.numel() // n,)](
            g, x, upper, lower, inv, nu, gx, gk, gaa, n,
            STANDARDIZE=standardize,
            WITH_D=standardize or with_d,
            **_launch(n, x.dtype == torch.float64),
        )  # fmt: skip
    return gx, gk, gaa


def _registers(n: int, double: bool) -> dict[str, int]:
    """As many as the forward kernel needs: the compiler takes more, and then fewer programs run at once."""
    return {"maxnreg": 64} if not double and n <= 4096 and torch.version.hip is None else {}


def _launch(n: int, double: bool) -> dict[str, int]:
    block = triton.next_power_of_2(n)
    return {"BLOCK": block, "num_warps": min(max(block // (256 if not double else 128), 1), 16)}


def _per_row(value: float | Tensor, x: Tensor, rows: tuple[int, ...]) -> tuple[Tensor, int, float]:
    """(tensor, stride, number): numbers are passed to the kernel directly, unless they need all 64 bits."""
    if not isinstance(value, Tensor):
        if x.dtype != torch.float64:
            return x, 0, float(value)
        value = torch.full((1,), value, dtype=x.dtype, device=x.device)
    if value.numel() == 1:
        return value, 0, 0.0
    return value.expand(rows).contiguous(), 1, 0.0

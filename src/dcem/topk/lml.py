"""The limited multi-label (LML) projection: a soft, differentiable top-k.

    lml(x, k, tau) = argmin_{0 < y < 1}  -x·y - tau H_b(y)   subject to  Σ y = k        (Eq. 4 of the paper)

Its optimality conditions leave one unknown a row, the dual ν:

    y = σ(a + ν)  with  a = x / tau,  and ν the root of  Σ σ(a + ν) = k.

The root is found by Newton's method on F(ν) = logit(mean σ(a + ν)) - logit(k / n), which is nearly linear.
Differentiating the same condition gives the derivatives: with s = y (1 - y), ∂ν/∂a = -s / Σs and
∂ν/∂k = 1 / Σs, so that the vector-Jacobian product for a is s ⊙ (g - <s, g> / Σs).
"""

import math
from typing import Any

import torch
from torch import Tensor

from dcem.topk.hard import hard_topk

try:
    from dcem.topk import lml_triton as fused
except ImportError:  # no Triton here
    fused = None  # type: ignore[assignment]

_SATURATED = 1000.0  # beyond this many units from the threshold a sigmoid is 0 or 1 in every dtype
_SOFT_SPREAD = 4.0  # rows whose a spreads less than this are smooth enough to start from their moments


def lml(x: Tensor, k: float | Tensor, tau: float | Tensor = 1.0, dim: int = -1) -> Tensor:
    """Soft top-k along `dim`: weights in [0, 1] that sum to k, the largest entries getting the most.

    Args:
        x: scores of any shape. Entries of -inf get weight zero.
        k: how many to choose, 0 < k <= n; a number, or a tensor broadcast over the rows (x without `dim`).
        tau: temperature, > 0; a number or a tensor like k. The smaller, the closer to the hard top-k,
            which is what the number 0 gives.
        dim: the dimension of the n candidates.

    Gradients reach x, k and tau, to any order. float16 and bfloat16 are computed in float32.

    >>> lml(torch.tensor([2.0, 1.0, -1.0]), k=1, tau=0.5)
    tensor([0.7278, 0.2657, 0.0066])
    """
    k, tau = (v if isinstance(v, Tensor) else float(v) for v in (k, tau))
    _check(x, k, tau, dim)
    rows = x.movedim(dim, -1)
    weights = soft_topk(rows, _as_rows(k, rows, "k"), _as_rows(tau, rows, "tau"))
    return weights.movedim(-1, dim)


def soft_topk(
    x: Tensor, k: float | Tensor, tau: float | Tensor, standardize: bool = False, finite_only: bool = False
) -> Tensor:
    """`lml` over the last dimension, unchecked; tensors k and tau end in a dimension of size 1.

    With `standardize`, x is first brought to mean 0 and standard deviation 1 in every row, which makes the
    result invariant to shifting and scaling x. A row that is constant to rounding then gets k/n everywhere.
    `finite_only`, for the fused kernel alone, leaves out entries that are not finite (see `finite_topk`).
    """
    n = x.shape[-1]
    if x.numel() == 0:
        return x * 0
    if not isinstance(tau, Tensor):
        if tau == 0:
            return hard_topk(x, k)
        tau = max(tau, torch.finfo(x.dtype).tiny)
    if not isinstance(k, Tensor) and k == n and not finite_only:
        return torch.ones_like(x)
    if x.dtype in (torch.float16, torch.bfloat16):
        return soft_topk(x.float(), _float(k), _float(tau), standardize, finite_only).to(x.dtype)
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return _SoftTopK.apply(x, k, tau, standardize, finite_only)[0]
    return _EagerSoftTopK.apply(x, k, tau, standardize, finite_only)


def use_fused(x: Tensor) -> bool:
    """Does the Triton kernel do this one?"""
    return fused is not None and x.is_cuda and x.shape[-1] <= fused.MAX_ROW


class _SoftTopK(torch.autograd.Function):
    """y, and what its backward needs: the rows' means and a factor inv, with a = (x - mean) inv + const."""

    @staticmethod
    def forward(
        x: Tensor, k: float | Tensor, tau: float | Tensor, standardize: bool, finite_only: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        if torch.compiler.is_compiling():
            return _solve_op(x, _as_tensor(k, x), _as_tensor(tau, x), standardize, finite_only)
        return _solve(x, k, tau, standardize, finite_only)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        _remember(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        g = grads[0]
        if g is None:
            return (None,) * 5
        x, y, mean, inv, tau = ctx.saved_tensors
        tau = ctx.tau if tau is None else tau
        need_x, need_k, need_tau = ctx.needs_input_grad[:3]
        again = torch.is_grad_enabled()  # a second derivative is wanted
        if use_fused(x) and not again and not torch.compiler.is_compiling():
            gx, gk, gaa = fused.backward(g, x, y, mean, inv, ctx.standardize, ctx.finite_only, need_tau)
        else:
            d, inv = _centre_and_scale(x, tau, ctx.standardize)[1:] if again else (x - mean, inv)
            s = torch.addcmul(y, y, y, value=-1)
            sg = s * g
            # A row without slope (every weight 0 or 1) passes no gradient instead of 0 / 0.
            gk = sg.sum(-1, keepdim=True) / s.sum(-1, keepdim=True).clamp_min(1e-30)
            ga = torch.addcmul(sg, s, gk, value=-1)
            if ctx.standardize or need_tau:
                a = d * inv
                gaa = (ga * a).sum(-1, keepdim=True)
            if ctx.standardize:
                ga = torch.addcmul(ga, a, gaa * (tau**2 / x.shape[-1]), value=-1)
            gx = ga * inv
        gtau = (-gaa / tau).sum_to_size(tau.shape) if need_tau else None
        return gx if need_x else None, gk.sum_to_size(ctx.k_shape) if need_k else None, gtau, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, k: Any, tau: Any, standardize: bool, finite_only: bool
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
        def front(value: Any, dim: int | None, ndim: int) -> Any:
            if not isinstance(value, Tensor):
                return value
            value = value.unsqueeze(0) if dim is None else value.movedim(dim, 0)
            return value.reshape(value.shape[0], *(1,) * (ndim - value.ndim), *value.shape[1:])

        ndim = x.ndim + (in_dims[0] is None)
        x = front(x, in_dims[0], ndim).expand(info.batch_size, *[-1] * (ndim - 1))
        k, tau = front(k, in_dims[1], ndim), front(tau, in_dims[2], ndim)
        return _SoftTopK.apply(x, k, tau, standardize, finite_only), (0, 0, 0)


class _EagerSoftTopK(torch.autograd.Function):
    """The same without the hooks for torch.func, whose bookkeeping costs more than a small solve."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        output = _solve(*inputs)
        _remember(ctx, inputs, output)
        return output[0]

    backward = _SoftTopK.backward


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """What the backward needs."""
    x, k, tau, ctx.standardize, ctx.finite_only = inputs
    ctx.tau = None if isinstance(tau, Tensor) else tau
    ctx.k_shape = k.shape if isinstance(k, Tensor) else None
    ctx.save_for_backward(x, *output, tau if isinstance(tau, Tensor) else None)


def _centre_and_scale(x: Tensor, tau: float | Tensor, standardize: bool) -> tuple[Tensor, Tensor, Tensor]:
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


def _solve(
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
    mean, d, inv = _centre_and_scale(x, tau, standardize)
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


def take(value: float | Tensor, rows: tuple[Tensor, ...], shape: torch.Size) -> float | Tensor:
    """Of a number, or a tensor over the rows of x of that shape, what belongs to some of the rows."""
    return value.expand(*shape[:-1], 1)[rows] if isinstance(value, Tensor) else value


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


@torch.library.custom_op("dcem::soft_topk", mutates_args=())
def _solve_op(
    x: Tensor, k: Tensor, tau: Tensor, standardize: bool, finite_only: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The solve as one opaque operator, for torch.compile."""
    return _solve(x, k, tau, standardize, finite_only)


@_solve_op.register_fake
def _(
    x: Tensor, k: Tensor, tau: Tensor, standardize: bool, finite_only: bool
) -> tuple[Tensor, Tensor, Tensor]:
    rows = (*x.shape[:-1], 1)
    return torch.empty_like(x), x.new_empty(rows), x.new_empty(rows)


def _float(value: float | Tensor) -> float | Tensor:
    return value.float() if isinstance(value, Tensor) else value


def _as_tensor(value: float | Tensor, like: Tensor) -> Tensor:
    return (
        value if isinstance(value, Tensor) else torch.full((1,), value, dtype=like.dtype, device=like.device)
    )


def _as_rows(value: float | Tensor, x: Tensor, name: str) -> float | Tensor:
    """A tensor over the rows of x, shaped to broadcast against x."""
    if not isinstance(value, Tensor):
        return value
    try:
        fits = torch.broadcast_shapes(value.shape, x.shape[:-1]) == x.shape[:-1]
    except RuntimeError:
        fits = False
    if not fits:
        rows = tuple(x.shape[:-1])
        raise ValueError(f"lml: {name} must broadcast over the rows {rows}, got shape {tuple(value.shape)}")
    return value.to(torch.promote_types(x.dtype, torch.float32)).unsqueeze(-1)


def _check(x: Tensor, k: float | Tensor, tau: float | Tensor, dim: int) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(
            f"lml: x must be a floating-point tensor, got {getattr(x, 'dtype', type(x).__name__)}"
        )
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"lml: dim must be a dimension of x, whose shape is {tuple(x.shape)}, got {dim}")
    n = x.shape[dim]
    if not isinstance(k, Tensor) and not 0 < k <= n:
        raise ValueError(f"lml: k must satisfy 0 < k <= n = {n}, got {k}")
    if not isinstance(tau, Tensor) and not tau >= 0:
        raise ValueError(f"lml: tau must be >= 0, got {tau}")
    for name, value in (("k", k), ("tau", tau)):
        # Reading a value on an accelerator would stall it, and inside a transform there is none to read.
        if not isinstance(value, Tensor) or value.device.type != "cpu" or _inside_transform(value):
            continue
        good = (value > 0) & (value <= n) if name == "k" else value > 0
        if not good.all():
            rule = f"0 < k <= n = {n}" if name == "k" else "tau > 0 where it is a tensor"
            raise ValueError(f"lml: {name} must satisfy {rule}, got {value[~good].flatten()[0].item()}")


def _inside_transform(value: Tensor) -> bool:
    return torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(value)

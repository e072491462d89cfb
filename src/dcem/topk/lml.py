"""The limited multi-label (LML) projection: a soft, differentiable top-k.

    lml(x, k, tau) = argmin_{0 < y < 1}  -x·y - tau H_b(y)   subject to  Σ y = k        (Eq. 4 of the paper)

Its optimality conditions leave one unknown per row, the dual ν:

    y = σ(a + ν)  with  a = x / tau,  and ν the root of  Σ σ(a + ν) = k.

The root is found by Newton's method on a function of ν that is nearly linear (`dcem.topk.dual`).
Differentiating the same condition gives the derivatives: with s = y (1 - y), ∂ν/∂a = -s / Σs and
∂ν/∂k = 1 / Σs, so that the vector-Jacobian product for a is s ⊙ (g - <s, g> / Σs).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from dcem._checks import all_finite, can_look, check, check_tau, is_transformed, over_rows
from dcem._graph import by_formula, partials, zero_with_graph
from dcem._native import compiles_natively, kernel
from dcem.topk import lml_native as native
from dcem.topk.better_half import by_better_half
from dcem.topk.dual import from_threshold, inverse
from dcem.topk.hard import hard_topk
from dcem.topk.standardize import Scaling, gated, standardize

try:
    from dcem.topk import lml_triton as fused
except ImportError:  # Triton is not installed
    fused = None  # type: ignore[assignment]


def lml(x: Tensor, k: float | Tensor, tau: float | Tensor = 1.0, dim: int = -1) -> Tensor:
    """Soft top-k along `dim`: weights in [0, 1] that sum to k, the largest entries getting the most.

    Args:
        x: scores of any shape. An entry of -inf or NaN gets weight zero, one of +inf is chosen before all
            others; no gradient reaches them. Where at most k entries are left, each of them gets weight one.
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
    dtype = torch.promote_types(x.dtype, torch.float32)
    k, tau = over_rows(k, "lml: k", rows, dtype), over_rows(tau, "lml: tau", rows, dtype)
    return soft_topk(rows, k, tau).movedim(-1, dim)


def soft_topk(
    x: Tensor,
    k: float | Tensor,
    tau: float | Tensor,
    scaling: Scaling = False,
    finite_only: bool = False,
    slopes_at: float | Tensor | None = None,
    gate: bool = False,
    lowest: bool = False,
) -> Tensor:
    """`lml` over the last dimension, unchecked; tensors k and tau end in a dimension of size 1.

    With `scaling`, the finite entries of every row are first brought to one scale, which makes the result
    invariant to shifting and scaling x: True to mean 0 and standard deviation 1, 'half' by their better half
    (`by_better_half` of -x). A row that is constant up to rounding then gets k/n everywhere. With
    `finite_only`, +inf gets weight zero too. With `slopes_at`, a temperature above tau, the derivatives are
    those at that temperature. With `gate`, no gradient passes where entries differ only by rounding. With
    `lowest`, x is negated.
    """
    if x.numel() == 0:
        return x * 0
    if x.dtype in (torch.float16, torch.bfloat16):
        wide: Any = (v.float() if isinstance(v, Tensor) else v for v in (k, tau, slopes_at))
        k, tau, slopes_at = wide
        return soft_topk(x.float(), k, tau, scaling, finite_only, slopes_at, gate, lowest).to(x.dtype)
    if not isinstance(tau, Tensor) and tau == 0:
        return hard_topk(-x if lowest else x, k, finite_only)
    transformed = is_transformed()
    if not isinstance(slopes_at, Tensor):
        how = flags(scaling, finite_only, gate, lowest)
        inputs = x, *native.split(k), *native.split(tau), slopes_at or 0.0, how
        if transformed:
            if finite_only and compiles_natively(x):
                return torch.ops.dcem.soft_topk(*inputs)[0]
        elif kernel("soft_topk", x, k, tau):
            try:
                if torch.is_grad_enabled():
                    return _NativeSoftTopK.apply(*inputs)
                return native.forward(*inputs)[0]
            except native.InfiniteError:
                pass  # the slow path handles such entries
    if lowest:
        x = -x
    if slopes_at is not None:
        y = soft_topk(x, k, tau, scaling, finite_only)
        return y.detach() + zero_with_graph(soft_topk(x, k, slopes_at, scaling, finite_only, None, gate))
    use_fused = fused is not None and x.is_cuda and x.shape[-1] <= fused.MAX_ROW and not transformed
    y = (_fused if use_fused else _plain)(x, k, tau, scaling, finite_only)
    return gated(y, x) if gate else y


def flags(scaling: Scaling, finite_only: bool, gate: bool, lowest: bool) -> int:
    """These settings of `soft_topk` as flags for its kernel."""
    return _SCALINGS[scaling] + finite_only * native.FINITE_ONLY + gate * native.GATE + lowest * native.LOWEST


_SCALINGS: dict[Scaling, int] = {False: 0, True: native.STANDARDIZE, "half": native.HALF}


def _ordered(x: Tensor, scaling: Scaling, finite_only: bool) -> Tensor:
    """x, scaled if requested, with infinities for entries that are not finite: they are ranked, but get no
    gradient."""
    good = x.isfinite()
    place = -torch.inf if finite_only else torch.where(x == torch.inf, x.detach(), -torch.inf)
    if scaling == "half":
        x = -by_better_half(-x)
    elif scaling:
        x = standardize(x, good)
    return torch.where(good, x, place)


def _fused(x: Tensor, k: float | Tensor, tau: float | Tensor, scaling: Scaling, finite_only: bool) -> Tensor:
    if scaling == "half":  # which the kernel does not know
        x, scaling = _ordered(x, scaling, finite_only), False
    return _FusedSoftTopK.apply(x, k, tau, scaling, finite_only)


def _plain(x: Tensor, k: float | Tensor, tau: float | Tensor, scaling: Scaling, finite_only: bool) -> Tensor:
    """In torch operations: where there is no kernel, and for second derivatives."""
    if scaling or not (can_look(x) and all_finite(x)):
        x = _ordered(x, scaling, finite_only)
    return _SoftTopK.apply(x, k, tau)[0]


class _SoftTopK(torch.autograd.Function):
    """y = σ(z) and z = a + ν, both differentiable: the derivatives of y are functions of z."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, k: float | Tensor, tau: float | Tensor) -> tuple[Tensor, Tensor]:
        z = from_threshold(x, k, tau, look=x.is_cpu and not is_transformed())
        return z.sigmoid(), z

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, k, tau = inputs
        ctx.tau = None if isinstance(tau, Tensor) else tau
        ctx.k_shape = k.shape if isinstance(k, Tensor) else None
        ctx.save_for_backward(output[1], tau if isinstance(tau, Tensor) else None)

    @staticmethod
    def backward(ctx: Any, gy: Tensor, gz: Tensor) -> tuple[Tensor | None, ...]:
        z, tau = ctx.saved_tensors
        inv = inverse(ctx.tau if tau is None else tau, z)
        s, p = _slopes(z)
        total = gz.sum(-1, keepdim=True)
        gk = (p * gy).sum(-1, keepdim=True)
        ga = s * (gy - gk) + gz - p * total
        gk = gk + total / s.sum(-1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)
        gtau = -_dot(ga, z) * inv
        return (
            ga * inv,
            None if ctx.k_shape is None else gk.sum_to_size(ctx.k_shape),
            None if tau is None else gtau.sum_to_size(tau.shape),
        )


class _NativeSoftTopK(torch.autograd.Function):
    """One kernel forward and one backward, on the CPU."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        output = native.forward(*inputs)
        native.remember(ctx, inputs, output)
        return output[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        if not by_formula(g):
            return native.gradients(ctx, g, native.backward)

        def formula(x: Tensor, k: float, ks: Tensor | None, tau: float, taus: Tensor | None) -> Tensor:
            scaling: Scaling = "half" if ctx.flags & native.HALF else bool(ctx.flags & native.STANDARDIZE)
            x = -x if ctx.flags & native.LOWEST else x
            return _plain(x, k if ks is None else ks, tau if taus is None else taus, scaling, True)

        x, ks, taus, _, stats = ctx.saved_tensors
        g = g * stats[..., 2:3]  # 0 where the gate is closed
        return *partials(formula, (x, ctx.k, ks, ctx.tau, taus), ctx.needs_input_grad, g), None, None


class _FusedSoftTopK(torch.autograd.Function):
    """One kernel forward and one backward, on a CUDA device."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *settings: Any) -> Tensor:
        y, *rows = fused.forward(x, *settings)
        ctx.save_for_backward(x, *rows)
        ctx.settings = settings
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, upper, lower, inv, nu = ctx.saved_tensors
        if by_formula(g):
            return partials(_plain, (x, *ctx.settings), ctx.needs_input_grad, g)
        k, tau, standardize, _ = ctx.settings
        need_x, need_k, need_tau, *_ = ctx.needs_input_grad
        gx, gk, gaa = fused.backward(g, x, upper, lower, inv, nu, standardize, need_tau)
        gtau = (-gaa * inverse(tau, x)).sum_to_size(tau.shape) if need_tau else None
        return gx if need_x else None, gk.sum_to_size(k.shape) if need_k else None, gtau, None, None


def _slopes(z: Tensor) -> tuple[Tensor, Tensor]:
    """s = y (1 - y) and p = s / Σs, exact up to rounding even where y rounds to 0 or 1 and s underflows."""
    log_s = logsigmoid(z) + logsigmoid(-z)
    peak = log_s.detach().amax(-1, keepdim=True).clamp_min(torch.finfo(z.dtype).min)
    relative = torch.exp(log_s - peak)
    # A row with only infinite z passes no gradient instead of 0 / 0.
    return log_s.exp(), relative / relative.sum(-1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)


def _dot(ga: Tensor, z: Tensor) -> Tensor:
    """<ga, z> per row; where z is infinite, ga is zero."""
    return (ga * torch.where(z.isinf(), 0.0, z)).sum(-1, keepdim=True)


def _check(x: Tensor, k: float | Tensor, tau: float | Tensor, dim: int) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(
            f"lml: x must be a floating-point tensor, got {getattr(x, 'dtype', type(x).__name__)}"
        )
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"lml: dim must be a dimension of x, whose shape is {tuple(x.shape)}, got {dim}")
    n = x.shape[dim]
    check("lml: k", k, f"satisfy 0 < k <= n = {n}", lambda k: (k > 0) & (k <= n))
    check_tau("lml", tau)

"""The limited multi-label (LML) projection: a soft, differentiable top-k.

    lml(x, k, tau) = argmin_{0 < y < 1}  -x·y - tau H_b(y)   subject to  Σ y = k        (Eq. 4 of the paper)

Its optimality conditions leave one unknown a row, the dual ν:

    y = σ(a + ν)  with  a = x / tau,  and ν the root of  Σ σ(a + ν) = k.

The root is found by Newton's method on F(ν) = logit(mean σ(a + ν)) - logit(k / n), which is nearly linear.
Differentiating the same condition gives the derivatives: with s = y (1 - y), ∂ν/∂a = -s / Σs and
∂ν/∂k = 1 / Σs, so that the vector-Jacobian product for a is s ⊙ (g - <s, g> / Σs).
"""

from typing import Any

import torch
from torch import Tensor

from dcem._checks import can_look, is_transformed
from dcem.topk.dual import centre_and_scale, fused, solve, use_fused
from dcem.topk.hard import hard_topk


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
    if is_transformed():
        return _SoftTopK.apply(x, k, tau, standardize, finite_only)[0]
    return _EagerSoftTopK.apply(x, k, tau, standardize, finite_only)


class _SoftTopK(torch.autograd.Function):
    """y, and what its backward needs: the rows' means and a factor inv, with a = (x - mean) inv + const."""

    @staticmethod
    def forward(
        x: Tensor, k: float | Tensor, tau: float | Tensor, standardize: bool, finite_only: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        if torch.compiler.is_compiling():
            return _solve_op(x, _as_tensor(k, x), _as_tensor(tau, x), standardize, finite_only)
        return solve(x, k, tau, standardize, finite_only)

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
            d, inv = centre_and_scale(x, tau, ctx.standardize)[1:] if again else (x - mean, inv)
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
                # A shift of the row changes nothing: hold that exactly, since what is left is divided by the
                # spread, and multiplied by whatever all entries share.
                ga = ga - ga.mean(-1, keepdim=True)
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
        output = solve(*inputs)
        _remember(ctx, inputs, output)
        return output[0]

    backward = _SoftTopK.backward


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """What the backward needs."""
    x, k, tau, ctx.standardize, ctx.finite_only = inputs
    ctx.tau = None if isinstance(tau, Tensor) else tau
    ctx.k_shape = k.shape if isinstance(k, Tensor) else None
    ctx.save_for_backward(x, *output, tau if isinstance(tau, Tensor) else None)


@torch.library.custom_op("dcem::soft_topk", mutates_args=())
def _solve_op(
    x: Tensor, k: Tensor, tau: Tensor, standardize: bool, finite_only: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The solve as one opaque operator, for torch.compile."""
    return solve(x, k, tau, standardize, finite_only)


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
        if not isinstance(value, Tensor) or not can_look(value):
            continue
        good = (value > 0) & (value <= n) if name == "k" else value > 0
        if not good.all():
            rule = f"0 < k <= n = {n}" if name == "k" else "tau > 0 where it is a tensor"
            raise ValueError(f"lml: {name} must satisfy {rule}, got {value[~good].flatten()[0].item()}")

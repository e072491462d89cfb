"""Elite weights and moments as one autograd function, with one kernel each way: on the CPU, and on CUDA."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from dcem._checks import is_transformed
from dcem._graph import by_formula, partials
from dcem._native import compiles_natively, kernel
from dcem.distributions import fused
from dcem.distributions.gaussian import Gaussian, GaussianState
from dcem.solvers import refit_native as native
from dcem.solvers.elites import ScalingOrDone, slopes_at, soft_elites
from dcem.topk.lml import flags

try:
    from dcem.solvers import refit_triton as triton
except ImportError:  # Triton is not installed
    triton = None  # type: ignore[assignment]


def refit_by_kernel(
    gaussian: Gaussian,
    phi: GaussianState,
    u: Tensor,
    elite: tuple[Tensor, float | Tensor, float | Tensor, ScalingOrDone],
    sigma_min: float,
) -> tuple[GaussianState, Tensor] | None:
    """`gaussian.fit` of samples u (*B, N, n) with gated `soft_elites`, and the weights.

    None if two steps are needed: the kernel does not support the input.
    """
    values, k, tau, scaling = elite
    on_device = triton is not None and fused.wanted(u) and u.shape[-2] <= triton.MAX_SAMPLES
    if not (on_device or u.device.type == "cpu") or u.numel() == 0 or scaling == "done":
        return None
    if isinstance(k, Tensor) or isinstance(tau, Tensor) or tau == 0:
        return None
    if on_device and scaling is False and torch.is_grad_enabled() and values.requires_grad:
        return None  # the temperature of the slopes would be a tensor
    warmer = slopes_at(values, k, tau, scaling)
    if isinstance(warmer, Tensor):
        return None
    last_mean, last_sigma, slowest, least, near = gaussian.estimate(phi, u, sigma_min)
    inputs = values, u, last_mean, last_sigma
    floor, floors = (0.0, least) if isinstance(least, Tensor) else (least, None)
    how = flags(scaling, finite_only=True, gate=True, lowest=True)
    settings = float(k), float(tau), warmer or 0.0, how, slowest, floor, near
    run = triton if on_device else native
    if any(x is not None and (x.dtype, x.device) != (u.dtype, u.device) for x in (*inputs, floors)):
        return None
    if is_transformed():
        if not compiles_natively(u):
            return None
        weights, mean, sigma = _TracedRefit.apply(*inputs, floors, settings)
    elif not (on_device or kernel("refit", *inputs, floors)):
        return None
    elif not torch.is_grad_enabled():
        weights, mean, sigma, _ = run.forward(*inputs, floors, *settings)
    else:

        def again(values: Tensor, u: Tensor, *last: Any) -> tuple[Tensor, ...]:
            weights = soft_elites(values, k, tau, scaling, gate=True)
            return weights, *gaussian.fit(GaussianState(*last), u, weights, sigma_min)

        weights, mean, sigma = _Refit.apply(*inputs, floors, settings, run, again)
    return GaussianState(mean, sigma), weights


class _Refit(torch.autograd.Function):
    """By the kernels of the module `run`. `again` computes the same in two steps, for second derivatives."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        u: Tensor,
        last_mean: Tensor | None,
        last_sigma: Tensor | None,
        floors: Tensor | None,
        settings: tuple[Any, ...],
        run: ModuleType,
        again: Callable[..., tuple[Tensor, ...]],
    ) -> tuple[Tensor, Tensor, Tensor]:
        weights, mean, sigma, keep = run.forward(values, u, last_mean, last_sigma, floors, *settings)
        ctx.save_for_backward(values, u, last_mean, last_sigma, weights, mean, keep)
        ctx.settings, ctx.run, ctx.again = settings, run, again
        ctx.set_materialize_grads(False)  # weights hardly ever have one
        return weights, mean, sigma

    @staticmethod
    def backward(ctx: Any, gweights: Tensor | None, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *inputs, weights, mean, keep = ctx.saved_tensors
        gmean, gsigma = (torch.zeros_like(mean) if g is None else g for g in grads)
        if by_formula(gweights, gmean, gsigma):
            gweights = torch.zeros_like(weights) if gweights is None else gweights
            given = gweights, gmean, gsigma
            return *partials(ctx.again, inputs, ctx.needs_input_grad[:4], given), *(None,) * 4
        gradients = ctx.run.backward(*inputs, weights, mean, keep, gweights, gmean, gsigma, *ctx.settings)
        return *gradients, *(None,) * 4


class _TracedRefit(torch.autograd.Function):
    """By operators that torch.compile calls unchanged from the code it generates for the objective.

    Not operators with a derivative of their own (`torch.library.register_autograd`): every call of those
    passes through Python twice.
    """

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        u: Tensor,
        last_mean: Tensor | None,
        last_sigma: Tensor | None,
        floors: Tensor | None,
        settings: tuple[Any, ...],
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = torch.ops.dcem.refit(values, u, last_mean, last_sigma, floors, *settings)
        weights, mean, sigma, keep = found
        ctx.save_for_backward(values, u, last_mean, last_sigma, weights, mean, keep)
        ctx.settings = settings
        return weights, mean, sigma

    @staticmethod
    def backward(ctx: Any, gweights: Tensor, gmean: Tensor, gsigma: Tensor) -> tuple[Tensor | None, ...]:
        values, u, last_mean, last_sigma, weights, mean, keep = ctx.saved_tensors
        gvalues, gu, glast_mean, glast_sigma = torch.ops.dcem.refit_backward(
            values, u, last_mean, last_sigma, weights, mean, keep, gweights, gmean, gsigma, *ctx.settings
        )
        if last_mean is None:
            return gvalues, gu, None, None, None, None
        return gvalues, gu, glast_mean, glast_sigma, None, None

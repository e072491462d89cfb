"""Elite weights and moments as one autograd function on the CPU: half the bookkeeping of two."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dcem._checks import is_transformed
from dcem._graph import partials
from dcem._native import kernel
from dcem.distributions import moments_native
from dcem.distributions.gaussian import Gaussian, GaussianState
from dcem.solvers.elites import ScalingOrDone, slopes_at, soft_elites
from dcem.topk import lml_native
from dcem.topk.lml import flags


def refit_natively(
    gaussian: Gaussian,
    phi: GaussianState,
    u: Tensor,
    elite: tuple[Tensor, float | Tensor, float | Tensor, ScalingOrDone],
    sigma_min: float,
) -> tuple[GaussianState, Tensor] | None:
    """`gaussian.fit` of samples u (*B, N, n) with gated `soft_elites`, and the weights.

    None if two steps are needed: the kernels do not support the input, or no gradient is required.
    """
    values, k, tau, scaling = elite
    if not (torch.is_grad_enabled() and values.requires_grad and values.is_cpu):
        return None
    if is_transformed() or u.numel() == 0:
        return None
    if isinstance(k, Tensor) or isinstance(tau, Tensor) or tau == 0 or scaling == "done":
        return None
    warmer = slopes_at(values, k, tau, scaling)
    if isinstance(warmer, Tensor):
        return None
    last_mean, last_sigma, slowest, least, near = gaussian.estimate(phi, u, sigma_min)
    if kernel("moments", u, values, last_mean, last_sigma, least) is None:
        return None

    def again(values: Tensor, u: Tensor, *last: Any) -> tuple[Tensor, ...]:
        weights = soft_elites(values, k, tau, scaling, gate=True)
        return weights, *gaussian.fit(GaussianState(*last), u, weights, sigma_min)

    choice = k, tau, warmer, flags(scaling, finite_only=True, gate=True, lowest=True)
    floor = (0.0, least) if isinstance(least, Tensor) else (least, None)
    estimate = slowest, *floor, near
    weights, mean, sigma = _Refit.apply(values, u, last_mean, last_sigma, choice, estimate, again)
    return GaussianState(mean, sigma), weights


class _Refit(torch.autograd.Function):
    """Two kernels forward and two backward."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        u: Tensor,
        last_mean: Tensor | None,
        last_sigma: Tensor | None,
        choice: tuple[Any, ...],
        estimate: tuple[Any, ...],
        again: Callable[..., tuple[Tensor, ...]],
    ) -> tuple[Tensor, Tensor, Tensor]:
        weights, z, stats = lml_native.forward(values, *choice)
        mean, sigma, slope, excess = moments_native.forward(u, weights, last_mean, last_sigma, *estimate)
        ctx.save_for_backward(values, u, last_mean, last_sigma, z, stats, weights, mean, slope, excess)
        ctx.choice, ctx.slowest, ctx.again = choice, estimate[0], again
        ctx.set_materialize_grads(False)  # weights hardly ever have one
        return weights, mean, sigma

    @staticmethod
    def backward(ctx: Any, gweights: Tensor | None, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        values, u, last_mean, last_sigma, z, stats, weights, mean, slope, excess = ctx.saved_tensors
        gmean, gsigma = (torch.zeros_like(mean) if g is None else g for g in grads)
        if torch.is_grad_enabled():  # for second derivatives: the gradients as functions of the inputs
            inputs = values, u, last_mean, last_sigma
            gweights = torch.zeros_like(weights) if gweights is None else gweights
            given = gweights, gmean, gsigma
            return *partials(ctx.again, inputs, ctx.needs_input_grad, given), None, None, None
        gu, by_moments, *glast = moments_native.backward(
            u, weights, last_mean, last_sigma, ctx.slowest, mean, slope, excess, gmean, gsigma
        )
        gweights = by_moments if gweights is None else by_moments + gweights
        _, tau, warmer, how = ctx.choice
        gvalues, *_ = lml_native.backward(gweights, values, z, stats, warmer or tau, how, settings=False)
        return gvalues, gu, *glast, None, None, None

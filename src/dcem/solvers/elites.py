"""A soft choice of the k best samples, with a gradient that is more than noise."""

import math
from typing import Literal

import torch
from torch import Tensor

from dcem._checks import can_look
from dcem.topk.better_half import by_better_half
from dcem.topk.lml import soft_topk
from dcem.topk.standardize import Scaling, standardize

ScalingOrDone = Scaling | Literal["done"]


def scaled(values: Tensor, normalize: Scaling) -> Tensor:
    """Values (*B, N), scaled for comparison; NaN for those that are not finite."""
    if normalize == "half":
        return by_better_half(values)
    good = values.isfinite()
    return torch.where(good, standardize(values, good) if normalize else values, torch.nan)


def soft_elites(
    values: Tensor, k: float | Tensor, tau: float | Tensor, scaling: ScalingOrDone, gate: bool = False
) -> Tensor:
    """Weights in [0, 1] for values (*B, N) that sum to k, highest for the lowest values: lml(-v, k, tau).

    If the temperature is so low that almost no sample is undecided, the derivative is noise: almost always
    zero, and otherwise huge. Derivatives of any order are then those of the lowest temperature with a useful
    one (`lowest_smooth`); the forward pass is unchanged. Finite differences of the first derivatives, which
    see the weights themselves change, give other second ones. With `gate`, gradients are those of `gated`
    weights.
    """
    warmer = slopes_at(values, k, tau, scaling)
    scaling = False if scaling == "done" else scaling
    return soft_topk(values, k, tau, scaling, finite_only=True, slopes_at=warmer, gate=gate, lowest=True)


def slopes_at(
    values: Tensor, k: float | Tensor, tau: float | Tensor, scaling: ScalingOrDone
) -> float | Tensor | None:
    """The temperature at which `soft_elites` takes its gradients, if not τ."""
    if not (torch.is_grad_enabled() and values.requires_grad):
        return None
    least = _warm_enough(values, k, tau, scaling)
    return None if least is tau else least


def slope_of_elites(values: Tensor, k: float | Tensor, tau: float | Tensor, scaling: ScalingOrDone) -> Tensor:
    """How much each weight of `soft_elites` changes with its value, (*B, N), up to a factor per row."""
    weights = soft_elites(values, k, _warm_enough(values, k, tau, scaling), scaling)
    return weights * (1 - weights)


def lowest_smooth(n: int, k: float | Tensor) -> float | Tensor:
    """The temperature, in standard deviations of the values, at which about one of n samples is undecided.

    Σ y (1 − y) ≈ τ · n · density at the threshold, and a logistic distribution of unit variance has density
    (π / √3) p (1 − p) at its quantile p = k / n.
    """
    return math.sqrt(3) / math.pi / (k * (1 - k / n) + 1e-9)


def is_hard(tau: float | Tensor) -> bool:
    """Is it the number 0, for the hard top-k, which passes no gradient?"""
    return not isinstance(tau, Tensor) and tau == 0


def _warm_enough(
    values: Tensor, k: float | Tensor, tau: float | Tensor, scaling: ScalingOrDone
) -> float | Tensor:
    """τ, but at least the lowest temperature whose derivative is more than noise."""
    if is_hard(tau):
        return tau
    least: float | Tensor = lowest_smooth(values.shape[-1], k)
    if scaling is False:
        finite = torch.where(values.isfinite(), values.detach(), torch.nan)
        mean = finite.nanmean(-1, keepdim=True)
        least = least * (finite - mean).square().nanmean(-1, keepdim=True).sqrt()
    if not isinstance(tau, Tensor) and not isinstance(least, Tensor):
        return tau if tau >= least else least
    warmer = torch.maximum(torch.as_tensor(tau).to(values), torch.as_tensor(least).to(values))
    return tau if can_look(warmer) and bool((warmer == tau).all()) else warmer

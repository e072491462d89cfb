"""Proximal policy optimisation: a Gaussian policy's log-probability and the clipped losses on it."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_prob(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """ln N(actions; mean, σ²) summed over the numbers of an action: (..., m) → (...).

    Actions are as they were drawn, before any clipping to what an environment accepts.
    """
    standard = (actions - mean) * (-log_std).exp()
    return (-0.5 * standard.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def clipped_loss(ratios: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """−mean of min(ρ A, clamp(ρ, 1 − ε, 1 + ε) A): no gain from moving an action's probability further.

    With the ``ratios`` ρ = π(a | s) / π_old(a | s), (B,), the ``advantages`` A, (B,), and ε = ``clip``.

    >>> clipped_loss(torch.tensor([1.5, 0.5]), torch.tensor([1.0, 1.0]), clip=0.2)
    tensor(-0.8500)
    """
    return -torch.minimum(ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages).mean()


def value_loss(values: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error of values against returns, both (B,)."""
    return (values - targets).square().mean()


def clipped_fraction(ratios: Tensor, clip: float) -> Tensor:
    """The share of ratios (B,) that lie outside 1 ± ε."""
    return ((ratios - 1).abs() > clip).to(ratios.dtype).mean()


def divergence(log_ratios: Tensor) -> Tensor:
    """An estimate of KL(π_old ‖ π) from ln ρ (B,), never negative: the mean of ρ − 1 − ln ρ."""
    return (log_ratios.expm1() - log_ratios).mean()


def standardized(x: Tensor) -> Tensor:
    """Zero mean and unit variance over all entries."""
    return (x - x.mean()) / (x.std(correction=0) + 1e-8)

"""Soft top-k operators of others, from the formulas of their papers: weights in [0, 1] that should sum to k.

Each is a function of scores x (batch, n), k and a temperature, with the derivative that its paper gives.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Operator = Callable[[Tensor, int, float], Tensor]


def soft_topk(x: Tensor, k: int, epsilon: float, n_iters: int = 200) -> Tensor:
    """SOFT top-k (Xie et al., 2020): entropic optimal transport to the anchors 0 and 1, by Sinkhorn.

    At its fixed point it is σ(2x/ε + ν) with the ν that makes the sum k, which is LML at τ = ε/2.
    """
    return _SoftTopK.apply(x, k, epsilon, n_iters)


class _SoftTopK(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int, epsilon: float, n_iters: int) -> Tensor:
        n = x.shape[-1]
        # Costs to the anchors, (batch, n, 2), and the logarithms of what each anchor receives: two numbers
        # that are made on the device, since a CUDA graph cannot copy them there.
        costs = -torch.stack([x.square(), (x - 1).square()], -1) / epsilon
        share = torch.linspace(math.log((n - k) / n), math.log(k / n), 2, dtype=x.dtype, device=x.device)
        columns = torch.zeros_like(costs[..., :1, :])
        for _ in range(n_iters):
            rows = -math.log(n) - torch.logsumexp(costs + columns, -1, keepdim=True)
            columns = share - torch.logsumexp(costs + rows, -2, keepdim=True)
        weights = n * torch.exp(costs + rows + columns)[..., 1]
        ctx.save_for_backward(weights)
        ctx.epsilon = epsilon
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (weights,) = ctx.saved_tensors
        slope = 2 * weights * (1 - weights) / ctx.epsilon
        return _on_the_simplex(slope, grad), None, None, None


def lapsum(x: Tensor, k: int, alpha: float) -> Tensor:
    """LapSum (Struski et al., 2025): F((x − b)/α), F Laplace's distribution function, and b solved exactly.

    Between two neighbours of the sorted scores the sum of F is A e^(−b/α) + B e^(b/α) + C: a quadratic.
    """
    return _LapSum.apply(x, k, alpha)


class _LapSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int, alpha: float) -> Tensor:
        s = x.sort(-1).values / alpha
        n = s.shape[-1]
        # Σ e^(s_i) over those up to j, and Σ e^(−s_i) over those from j on, as logarithms.
        below = torch.logcumsumexp(s, -1)
        above = torch.logcumsumexp(-s.flip(-1), -1).flip(-1)
        rank = torch.arange(1, n + 1, dtype=x.dtype, device=x.device)
        # The sum of F at b = s_j: up to it a term is ½e^(s_i − b), above it 1 − ½e^(b − s_i).
        none = torch.full_like(s[..., :1], -torch.inf)
        at = 0.5 * (below - s).exp() + (n - rank) - 0.5 * (torch.cat([above[..., 1:], none], -1) + s).exp()
        j = (at > k).sum(-1, keepdim=True)  # the sum falls with b: b lies after the j-th score
        low = torch.cat([none, below], -1).gather(-1, j)
        high = torch.cat([above, none], -1).gather(-1, j)
        # ½ e^(low − b) + (n − j) − ½ e^(high + b) = k, for e^b, from where neither exponential overflows.
        pivot = torch.cat([s[..., :1], s], -1).gather(-1, j)
        log_2A, log_2B, C = low - pivot, high + pivot, n - j - k
        root = (C.square() + (log_2A + log_2B).exp()).sqrt()
        # Of the two forms of the root, the one without a difference of nearly equal numbers; by logarithms,
        # as in a wide gap both exponentials vanish.
        log_factor = torch.where(
            C > 0,
            (C + root).log() - log_2B,
            torch.where(C < 0, log_2A - (root - C).log(), (log_2A - log_2B) / 2),
        )
        z = x / alpha - (pivot + log_factor)
        tail = 0.5 * (-z.abs()).exp()
        ctx.save_for_backward(tail / alpha)
        return torch.where(z < 0, tail, 1 - tail)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _on_the_simplex(ctx.saved_tensors[0], grad), None, None


def euclidean(x: Tensor, k: int, tau: float) -> Tensor:
    """The Euclidean projection of x/τ onto {0 ≤ y ≤ 1, Σy = k}: clip(x/τ + ν, 0, 1), and ν solved exactly.

    It is the projection onto the permutahedron that fast soft sorting (Blondel et al., 2020) gives top-k.
    """
    return _Euclidean.apply(x, k, tau)


class _Euclidean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int, tau: float) -> Tensor:
        z = x / tau
        # The sum is piecewise linear in ν; an entry begins to count at −z and stops at 1 − z.
        kinks, order = torch.cat([-z, 1 - z], -1).sort(-1)
        slopes = torch.where(order < z.shape[-1], 1.0, -1.0).to(z.dtype).cumsum(-1)
        rises = slopes[..., :-1] * kinks.diff(dim=-1)
        sums = torch.cat([torch.zeros_like(z[..., :1]), rises.cumsum(-1)], -1)
        j = ((sums <= k).sum(-1, keepdim=True) - 1).clamp(max=sums.shape[-1] - 2)
        start, slope = kinks.gather(-1, j), slopes.gather(-1, j)
        nu = start + (k - sums.gather(-1, j)) / slope.clamp(min=1)
        y = (z + nu).clamp(0, 1)
        ctx.save_for_backward(((y > 0) & (y < 1)).to(y.dtype) / tau)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _on_the_simplex(ctx.saved_tensors[0], grad), None, None


def _on_the_simplex(slope: Tensor, grad: Tensor) -> Tensor:
    """The pullback of y = F(x + ν) with Σy fixed, where F has this slope."""
    mean = (slope * grad).sum(-1, keepdim=True) / slope.sum(-1, keepdim=True)
    return slope * (grad - mean)


OPERATORS: dict[str, Operator] = {"SOFT": soft_topk, "LapSum": lapsum, "Euclidean": euclidean}


def matched(operator: Operator, x: Tensor, k: int, ess: float) -> float:
    """The temperature at which weights rest on `ess` samples in the mean: (Σw)² / Σw², by bisection."""
    low, high = 1e-4, 1e3
    for _ in range(30):
        middle = math.sqrt(low * high)
        with torch.no_grad():
            weights = operator(x, k, middle)
        found = (weights.sum(-1).square() / weights.square().sum(-1)).mean().item()
        low, high = (middle, high) if found < ess else (low, middle)
    return math.sqrt(low * high)

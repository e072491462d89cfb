# mypy: allow-untyped-defs
"""The weights of `dcem_lab.suite.agents.search.WeightedElites` in one launch instead of fifty."""

import torch
import triton
import triton.language as tl
from torch import Tensor

LIMIT = 1024
"""Samples that a program can hold."""


def elite_weights(values: Tensor, k: int, temperature: float) -> Tensor:
    """softmax(−v / temperature) of standardised values (*B, N), only for the k lowest. No gradients."""
    n = values.shape[-1]
    values = values.contiguous()
    weights = torch.empty_like(values)
    N = max(triton.next_power_of_2(n), 32)
    with torch.cuda.device_of(values):
        elite_kernel[(values.numel() // n,)](
            values, weights, n, k, temperature, torch.finfo(values.dtype).eps, N=N, BLOCK=32
        )
    return weights


@triton.jit
def _finite(v):
    return tl.abs(v) < float("inf")  # false for NaN


@triton.jit(do_not_specialize=["n", "k", "temperature", "eps"])
def elite_kernel(value_ptr, weight_ptr, n, k, temperature, eps, N: tl.constexpr, BLOCK: tl.constexpr):
    """Weights of one row of n values per program."""
    value_ptr += tl.program_id(0).to(tl.int64) * n
    column = tl.arange(0, N)
    v = tl.load(value_ptr + column, mask=column < n, other=float("inf"))
    good = _finite(v)
    count = tl.maximum(tl.sum(good.to(tl.float32), 0), 1.0)
    mean = tl.sum(tl.where(good, v, 0.0), 0) / count
    off = tl.where(good, v - mean, 0.0)
    std = tl.sqrt(tl.sum(off * off, 0) / count)
    # A row that is constant up to rounding has no ranking: all entries get equal weight.
    informative = std > tl.maximum(4.0 * eps * tl.abs(mean), 1e-37)
    rate = tl.where(informative, 1.0 / (tl.where(informative, std, 1.0) * temperature), 0.0)
    better = tl.zeros((N,), tl.int32)  # how many are
    for j in range(0, N, BLOCK):
        other_column = j + tl.arange(0, BLOCK)
        other = tl.load(value_ptr + other_column, mask=other_column < n, other=float("inf"))
        better += tl.sum((_finite(other)[None, :] & (other[None, :] < v[:, None])).to(tl.int32), 1)
    score = tl.where(good, -off * rate, -float("inf"))
    highest = tl.max(score, 0)
    weight = tl.where(good, tl.exp(score - tl.where(good, highest, 0.0)), 0.0)
    total = tl.maximum(tl.sum(weight, 0), 1e-37)
    weight = tl.where(better < tl.where(informative, k, N), weight, 0.0) / total
    tl.store(weight_ptr + tl.program_id(0).to(tl.int64) * n + column, weight, mask=column < n)

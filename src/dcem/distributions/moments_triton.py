# mypy: allow-untyped-defs
"""Weighted mean and standard deviation in one Triton kernel: one program per row and block of columns."""

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 16  # of a block


@triton.jit
def _kernel(
    u_ptr, w_ptr, mean_ptr, sigma_ptr, floor, near, N, n, SAMPLES: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    sample = tl.arange(0, SAMPLES)
    u_ptr += row * N * n + sample[:, None] * n + column[None, :]
    w_ptr += row * N + sample
    inside = (column < n)[None, :]
    total = 0.0
    mean = tl.zeros((COLUMNS,), tl.float32)
    for i in range(0, N, SAMPLES):
        present = sample < N - i
        w = tl.load(w_ptr + i, mask=present, other=0.0)
        u = tl.load(u_ptr + i * n, mask=present[:, None] & inside, other=0.0)
        total += tl.sum(w, 0)
        mean += tl.sum(w[:, None] * u, 0)
    mean /= total
    variance = tl.zeros((COLUMNS,), tl.float32)
    for i in range(0, N, SAMPLES):
        present = sample < N - i
        w = tl.load(w_ptr + i, mask=present, other=0.0)
        d = tl.load(u_ptr + i * n, mask=present[:, None] & inside, other=0.0) - mean[None, :]
        variance += tl.sum(w[:, None] * d * d, 0)
    variance /= total
    least = floor + near * near * mean * mean
    variance = tl.maximum(variance, least, propagate_nan=tl.PropagateNan.ALL)
    tl.store(mean_ptr + row * n + column, mean, mask=column < n)
    tl.store(sigma_ptr + row * n + column, tl.sqrt(variance), mask=column < n)


def moments(u: Tensor, w: Tensor, floor: float, near: float) -> tuple[Tensor, Tensor]:
    """As `weighted_moments` in float32, with a variance of at least floor + (near mean)²."""
    u, w = u.contiguous(), w.contiguous()
    *batch, N, n = u.shape
    mean, sigma = u.new_empty(*batch, n), u.new_empty(*batch, n)
    samples = min(triton.next_power_of_2(N), 1024)
    with torch.cuda.device_of(u):
        _kernel[mean.numel() // n, triton.cdiv(n, COLUMNS)](
            u, w, mean, sigma, floor, near, N, n,
            SAMPLES=samples, COLUMNS=COLUMNS, num_warps=max(samples // 64, 1),
        )  # fmt: skip
    return mean, sigma

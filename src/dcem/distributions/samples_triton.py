# mypy: allow-untyped-defs
"""Samples of a diagonal Gaussian, moved into a box, as one Triton kernel forward and one backward."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024  # of samples
_TILE = 4096  # samples × columns at a time


@triton.jit
def _bound(ptr, number, column, inside, IS_TENSOR: tl.constexpr, like):
    """The bound of every column: a number, or loaded."""
    value = tl.zeros_like(column).to(like.dtype) + number
    if IS_TENSOR:
        value = tl.load(ptr + column, mask=inside, other=0.0)
    return value


@triton.jit
def _forward_kernel(
    mean_ptr, sigma_ptr, noise_ptr, low_ptr, high_ptr, u_ptr, x_ptr, low: tl.float64, high: tl.float64,
    size, n: tl.constexpr, TWICE: tl.constexpr, CLAMP: tl.constexpr, LOWS: tl.constexpr, HIGHS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    column = i % n
    mean = tl.load(mean_ptr + row * n + column, mask=inside, other=0.0)
    sigma = tl.load(sigma_ptr + row * n + column, mask=inside, other=0.0)
    u = mean + sigma * tl.load(noise_ptr + row * size + i, mask=inside, other=0.0)
    if CLAMP:
        lowest = _bound(low_ptr, low, column, inside, LOWS, u).to(u.dtype)
        highest = _bound(high_ptr, high, column, inside, HIGHS, u).to(u.dtype)
        u = tl.where(u < lowest, lowest, tl.where(u > highest, highest, u))
    tl.store(u_ptr + row * size + i, u, mask=inside)
    if TWICE:
        tl.store(x_ptr + row * size + i, u, mask=inside)


@triton.jit
def _backward_kernel(
    gu_ptr, gx_ptr, mean_ptr, sigma_ptr, noise_ptr, low_ptr, high_ptr, gmean_ptr, gsigma_ptr,
    low: tl.float64, high: tl.float64, N, n: tl.constexpr, TWICE: tl.constexpr, CLAMP: tl.constexpr,
    LOWS: tl.constexpr, HIGHS: tl.constexpr, SAMPLES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < n
    cell = row * n + column
    mean = tl.load(mean_ptr + cell, mask=inside, other=0.0)
    sigma = tl.load(sigma_ptr + cell, mask=inside, other=0.0)
    gmean, gsigma = tl.zeros_like(mean), tl.zeros_like(mean)
    for start in range(0, N, SAMPLES):
        sample = start + tl.arange(0, SAMPLES)
        mask = (sample < N)[:, None] & inside[None, :]
        at = row * N * n + sample[:, None] * n + column[None, :]
        g = tl.load(gu_ptr + at, mask=mask, other=0.0)
        if TWICE:
            g += tl.load(gx_ptr + at, mask=mask, other=0.0)
        noise = tl.load(noise_ptr + at, mask=mask, other=0.0)
        if CLAMP:  # samples outside were moved to a face, where they pass no gradient
            lowest = _bound(low_ptr, low, column, inside, LOWS, mean).to(mean.dtype)[None, :]
            highest = _bound(high_ptr, high, column, inside, HIGHS, mean).to(mean.dtype)[None, :]
            u = mean[None, :] + sigma[None, :] * noise
            g = tl.where((u >= lowest) & (u <= highest), g, 0.0)
        gmean += tl.sum(g, 0)
        gsigma += tl.sum(g * noise, 0)
    tl.store(gmean_ptr + cell, gmean, mask=inside)
    tl.store(gsigma_ptr + cell, gsigma, mask=inside)


Bounds = tuple[float | Tensor, float | Tensor] | None


def forward(mean: Tensor, sigma: Tensor, noise: Tensor, bounds: Bounds, twice: bool) -> tuple[Tensor, Tensor]:
    """mean + sigma · noise (*B, N, n) for mean and sigma (*B, n), clamped to bounds: numbers, or (n,).

    With `twice`, in two tensors; otherwise they are the same.
    """
    mean, sigma, noise = mean.contiguous(), sigma.contiguous(), noise.contiguous()
    n, size = noise.shape[-1], noise.shape[-2] * noise.shape[-1]
    u = torch.empty_like(noise)
    x = torch.empty_like(noise) if twice else u
    pointers, numbers, how = _bounds(bounds, mean)
    block = min(triton.next_power_of_2(size), _BLOCK)
    with torch.cuda.device_of(u):
        _forward_kernel[u.numel() // size, triton.cdiv(size, block)](
            mean, sigma, noise, *pointers, u, x, *numbers, size, n, TWICE=twice, BLOCK=block, **how
        )
    return u, x


def backward(
    gu: Tensor, gx: Tensor | None, mean: Tensor, sigma: Tensor, noise: Tensor, bounds: Bounds
) -> tuple[Tensor, Tensor]:
    """The gradients for mean and sigma, from those of one or of both tensors."""
    gu, mean, sigma, noise = (x.contiguous() for x in (gu, mean, sigma, noise))
    *_, N, n = noise.shape
    gmean, gsigma = torch.empty_like(mean), torch.empty_like(mean)
    pointers, numbers, how = _bounds(bounds, mean)
    columns = min(triton.next_power_of_2(n), 32)
    samples = min(triton.next_power_of_2(N), _TILE // columns)
    with torch.cuda.device_of(gu):
        _backward_kernel[mean.numel() // n, triton.cdiv(n, columns)](
            gu, gu if gx is None else gx.contiguous(), mean, sigma, noise, *pointers, gmean, gsigma, *numbers,
            N, n, TWICE=gx is not None, SAMPLES=samples, COLUMNS=columns,
            num_warps=min(max(samples * columns // 1024, 1), 8), **how,
        )  # fmt: skip
    return gmean, gsigma


def _bounds(bounds: Bounds, like: Tensor) -> tuple[list[Tensor], list[float], dict[str, bool]]:
    """The bounds as the kernels take them: pointers, numbers, and which of the two counts."""
    given = bounds or (0.0, 0.0)
    tensors = [isinstance(b, Tensor) for b in given]
    pointers = [
        b.to(like).expand(like.shape[-1:]).contiguous() if isinstance(b, Tensor) else like for b in given
    ]
    numbers = [0.0 if isinstance(b, Tensor) else float(b) for b in given]
    return pointers, numbers, {"CLAMP": bounds is not None, "LOWS": tensors[0], "HIGHS": tensors[1]}

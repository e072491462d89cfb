# mypy: allow-untyped-defs
"""Gradients of fully connected layers in half precision on CUDA: scale · xᵀ grad and scale · Σ grad.

The sums are over many rows and the results small. cuBLAS has few programs for them, or divides the rows and
adds in several launches, and the gradients are read once more for the bias.

- `parts_kernel`: a program sums a tile of the weight's gradient over a part of the rows, so that all
  multiprocessors have some. Those of the first row of tiles sum the gradient of the bias, too.
- `whole_kernel`: adds the parts in order, of weights and biases at once. Without atomics, two runs are equal
  in every bit.

Slices of wider rows are read where they are. All sums are float32.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

DEVICES: tuple[str, ...] = ("cuda",)  # tests change this
PROGRAMS = 264  # at most, where rows are divided: two for each multiprocessor of an H200
ROWS = 256  # of a part, about, at least: below, writing and adding the parts costs more than it saves
FLAT = 512  # numbers of the result that a program adds the parts of
AHEAD = 8  # parts of a number that are read before the first of them is added
MOST = 2**31 - 1  # numbers that a member may span: offsets in it are 32 bits


def fits(x: Tensor, grad: Tensor) -> bool:
    """Whether there are kernels for rows x (M, R, i) and grad (M, R, o), on their device and as they lie."""
    if x.device.type not in DEVICES or grad.device != x.device:
        return False
    if x.is_cuda and torch.cuda.get_device_capability(x.device) < (8, 0):
        return False  # older ones have not enough shared memory
    if not x.dtype == grad.dtype == torch.float16 or not x.numel() or not grad.numel():
        return False
    return all(_in_reach(t) and (t.stride(2) == 1 or t.shape[2] == 1) for t in (x, grad))


def layer_gradients(x: Tensor, grad: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """scale · xᵀ grad (M, i, o) and scale · Σ grad (M, o), in float32, of x (M, R, i) and grad (M, R, o)."""
    (M, R, X), Y = x.shape, grad.shape[-1]
    sizes = _sizes(Y)
    tiles = triton.cdiv(X, sizes["TALL"]) * triton.cdiv(Y, sizes["WIDE"])
    rows, parts = _parts(R, tiles * M, sizes["BLOCK"])
    n = M * X * Y + M * Y
    # Each part begins at a multiple of 16 numbers, also where n is none.
    partial = x.new_empty(parts, 16 * triton.cdiv(n, 16), dtype=torch.float32)
    whole = x.new_empty(n, dtype=torch.float32)
    x_m, x_r, x_unit = _strides(x)
    grad_m, grad_r, grad_unit = _strides(grad)
    with torch.cuda.device_of(x):
        parts_kernel[tiles, parts, M](
            x, grad, partial, R, rows, x_m, x_r, grad_m, grad_r,
            X=X, Y=Y, X_UNIT=x_unit, GRAD_UNIT=grad_unit, **sizes,
        )  # fmt: skip
        whole_kernel[(triton.cdiv(n, FLAT),)](partial, whole, parts, n, scale, FLAT=FLAT, AHEAD=AHEAD)
    return whole[: M * X * Y].view(M, X, Y), whole[M * X * Y :].view(M, Y)


def _sizes(Y: int) -> dict[str, Any]:
    """Tiles TALL × WIDE, and rows of a step. Hopper's tensor cores need 64 rows."""
    width = min(max(triton.next_power_of_2(Y), 16), 128)
    return {"TALL": 64, "WIDE": width, "BLOCK": 64, "num_warps": 4, "num_stages": 4}


def _parts(R: int, tiles: int, block: int) -> tuple[int, int]:
    """Rows of a part, whole blocks, and how many parts that makes of R, for these tiles of all members."""
    parts = max(min(PROGRAMS // tiles, R // ROWS), 1)
    rows = triton.cdiv(triton.cdiv(R, parts), block) * block
    return rows, triton.cdiv(R, rows)


def _strides(t: Tensor) -> tuple[int, int, int]:
    """Those of members and rows in units, and the unit: the largest power of two in both, of at most 16.

    The compiler knows it, and can read several numbers at once. On its own it notices multiples of 16
    only, where 8 of float16 are enough, as in rows of 296.
    """
    along, across = t.stride(0) if t.shape[0] > 1 else 0, t.stride(1) if t.shape[1] > 1 else 0
    unit = math.gcd(along, across, 16)
    return along // unit, across // unit, unit


def _in_reach(t: Tensor) -> bool:
    """Also rows past the last, of less than a block: their places are computed before they are left out."""
    return (t.shape[1] + 64) * t.stride(1) + t.shape[2] <= MOST


@triton.jit
def _part_of_tile(
    x_ptr, x_r, grad_ptr, grad_r, weight_ptr, bias_ptr, k, column, begin, end,
    X: tl.constexpr, Y: tl.constexpr, X_UNIT: tl.constexpr, GRAD_UNIT: tl.constexpr, WITH_BIAS: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """This tile of xᵀ grad for rows begin to end, and these columns of Σ grad if WITH_BIAS."""
    total = tl.zeros((TALL, WIDE), tl.float32)
    if WITH_BIAS:
        sums = tl.zeros((8, WIDE), tl.float32)  # of every eighth row: threads have those, and few registers
    for first in range(begin, end, BLOCK):
        row = first + tl.arange(0, BLOCK)
        # Rows that are not of this part are left out of both factors: 0 · NaN is NaN.
        inside = (k < X)[:, None] & (row < end)[None, :]
        x = tl.load(x_ptr + row[None, :] * (x_r * X_UNIT) + k[:, None], mask=inside, other=0.0)
        inside = (row < end)[:, None] & (column < Y)[None, :]
        grad = tl.load(
            grad_ptr + row[:, None] * (grad_r * GRAD_UNIT) + column[None, :], mask=inside, other=0.0
        )
        total = tl.dot(x, grad, total)
        if WITH_BIAS:
            sums += tl.sum(tl.reshape(grad.to(tl.float32), (BLOCK // 8, 8, WIDE)), 0)
    inside = (k < X)[:, None] & (column < Y)[None, :]
    tl.store(weight_ptr + k[:, None] * Y + column[None, :], total, mask=inside)
    if WITH_BIAS:
        tl.store(bias_ptr + column, tl.sum(sums, 0), mask=column < Y)


@triton.jit(do_not_specialize=["n_rows", "rows", "x_m", "x_r", "grad_m", "grad_r"])  # the units say it all
def parts_kernel(
    x_ptr, grad_ptr, partial_ptr, n_rows, rows, x_m, x_r, grad_m, grad_r,
    X: tl.constexpr, Y: tl.constexpr, X_UNIT: tl.constexpr, GRAD_UNIT: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A tile of one member's gradient over one part of the rows; see `layer_gradients`."""
    TILES: tl.constexpr = (Y + WIDE - 1) // WIDE
    tile, part = tl.program_id(0), tl.program_id(1)
    member, members = tl.program_id(2).to(tl.int64), tl.num_programs(2)
    k = tile // TILES * TALL + tl.arange(0, TALL)
    column = tile % TILES * WIDE + tl.arange(0, WIDE)
    begin = part * rows
    end = tl.minimum(begin + rows, n_rows)
    x_ptr += member * x_m * X_UNIT
    grad_ptr += member * grad_m * GRAD_UNIT
    weights = members * (X * Y)
    partial_ptr += part.to(tl.int64) * (tl.cdiv(weights + members * Y, 16) * 16)
    weight_ptr = partial_ptr + member * (X * Y)
    bias_ptr = partial_ptr + weights + member * Y
    if tile < TILES:
        _part_of_tile(
            x_ptr, x_r, grad_ptr, grad_r, weight_ptr, bias_ptr, k, column, begin, end,
            X, Y, X_UNIT, GRAD_UNIT, True, TALL, WIDE, BLOCK,
        )  # fmt: skip
    else:
        _part_of_tile(
            x_ptr, x_r, grad_ptr, grad_r, weight_ptr, bias_ptr, k, column, begin, end,
            X, Y, X_UNIT, GRAD_UNIT, False, TALL, WIDE, BLOCK,
        )  # fmt: skip


@triton.jit(do_not_specialize=["parts"])
def whole_kernel(partial_ptr, whole_ptr, parts, n, scale, FLAT: tl.constexpr, AHEAD: tl.constexpr):
    """scale times the sum of all parts, for FLAT of n numbers."""
    at = tl.program_id(0) * FLAT + tl.arange(0, FLAT)
    apart = (tl.cdiv(n, 16) * 16).to(tl.int64)
    total = tl.zeros((FLAT,), tl.float32)
    for begin in range(0, parts, AHEAD):
        for j in tl.static_range(AHEAD):
            part = begin + j
            numbers = tl.where(part < parts, n, 0)
            total += tl.load(partial_ptr + part * apart + at, mask=at < numbers, other=0.0)
    tl.store(whole_ptr + at, total * scale, mask=at < n)

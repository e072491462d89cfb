# mypy: allow-untyped-defs
"""Critics and actors, `EnsembleMLP` with silu(LayerNorm(·)) between its layers: one kernel forward, two back.

The layers are so small that separate operations would spend most of their time on launches and passes over
memory.

- `forward_kernel`: a program takes a tile of rows of one member through all three layers. It writes what each
  LayerNorm returns, n, and reads it again in blocks, as a factor of the next product: the weights are
  then streamed, where a whole matrix would not fit on the chip. The derivative needs n, too.
- `backward_kernel`: the same way back. It writes the gradients g of the pre-activations, and that of x.
- `weights_kernel`: the gradients of all weights and biases, inputsᵀ g and Σ g. A program sums a tile of one
  matrix over all rows, in order: without atomics, two runs are equal in every bit.

Products are float32, or TF32 where torch's own may be, with float32 accumulation. Factors are then cut off
after ten bits, not rounded as cuBLAS does: errors are 0.1 % instead of 0.03 %.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

DEVICES: tuple[str, ...] = ("cuda",)  # tests and benchmarks change this
WIDTHS = (64, 128, 256)  # of the hidden layers: a program holds whole rows of them
OUTPUTS = 128  # at most: it holds a row of those, too
TILE = 16  # rows of a program: faster than 32 or 64, alone and beside other trainings
BLOCK = 32  # numbers of a sum that are in work at a time
MOST = 2**31 - 1  # blocks of any sum: where the compiler knows how many, it unrolls, out of registers
TALL, WIDE = 32, 64  # of a weight's gradient: below 64 rows, Triton's products need no transposed copies


def fits(x: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Whether there are kernels for the device of x (M, N, X), and for these sizes."""
    if x.device.type not in DEVICES:
        return False
    if x.is_cuda and torch.cuda.get_device_capability(x.device) < (8, 0):
        return False  # older ones have neither TF32 nor enough shared memory
    _, X, W = parameters[0].shape
    Y = parameters[4].shape[-1]
    places = x.shape[1] * max(x.stride(1), X, W, Y)  # in a member's rows: they are 32 bits
    return W in WIDTHS and Y <= OUTPUTS and places < 2**31


def precision() -> str:
    """Of products: a choice of the whole process, which training makes, of what cuBLAS may do."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def forward(x: Tensor, parameters: Sequence[Tensor], precision: str) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (M, N, Y), and of both LayerNorms n (2, M, N, W) and 1 / σ (2, M, N)."""
    x, parameters = _in_rows(x), [p.contiguous() for p in parameters]
    M, N, _ = x.shape
    sizes = _sizes(parameters, precision)
    out, kept = x.new_empty(M, N, sizes["Y"]), x.new_empty(2, M, N, sizes["W"])
    rates = x.new_empty(2, M, N)
    with torch.cuda.device_of(x):
        forward_kernel[triton.cdiv(N, TILE), M](
            x, *parameters, kept, rates, out, N, x.stride(0), x.stride(1), MOST, **sizes, TILE=TILE
        )
    return out, kept, rates


def backward(
    above: Tensor, x: Tensor, parameters: Sequence[Tensor], kept: Tensor, rates: Tensor,
    of_x: bool, of_parameters: bool, precision: str, counted: int | None = None,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of x and of the parameters for that of the outputs, `above`; None where not asked for.

    Those of the parameters are from the first rows of each member, this many, or all.
    """
    above, x, parameters = above.contiguous(), _in_rows(x), [p.contiguous() for p in parameters]
    (M, N, X), sizes = x.shape, _sizes(parameters, precision)
    before = torch.empty_like(kept)
    gx = x.new_empty(M, N, X) if of_x else None
    gradients: list[Tensor | None] = [torch.empty_like(p) if of_parameters else None for p in parameters]
    with torch.cuda.device_of(x):
        backward_kernel[triton.cdiv(N, TILE), M](
            above, *parameters[::2], kept, rates, before, gx, N, MOST, **sizes, TILE=TILE, OF_X=of_x
        )
        if of_parameters:
            tiles = [triton.cdiv(p.shape[1], TALL) * triton.cdiv(p.shape[2], WIDE) for p in parameters[::2]]
            weights_kernel[sum(tiles), M](
                x, kept, before, above, *gradients, N, N if counted is None else counted,
                x.stride(0), x.stride(1), **sizes, TALL=TALL, WIDE=WIDE,
            )  # fmt: skip
    return [gx, *gradients]


def _in_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _sizes(parameters: Sequence[Tensor], precision: str) -> dict[str, Any]:
    (_, X, W), Y = parameters[0].shape, parameters[4].shape[-1]
    pad = max(triton.next_power_of_2(Y), 16)
    return {"X": X, "W": W, "Y": Y, "PAD": pad, "BLOCK": BLOCK, "PRECISION": precision}


@triton.jit
def _product(
    left_ptr, stride, row, alive, weight_ptr, column, most,
    K: tl.constexpr, N: tl.constexpr, ALONG: tl.constexpr, ACROSS: tl.constexpr, GATED: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Rows (TILE, K) of the left matrix, through silu if GATED, times these columns of the weight (K, N).

    The weight's rows are ALONG numbers apart, its columns ACROSS: it may be a transposed one.
    """
    total = tl.zeros((TILE, column.shape[0]), tl.float32)
    for j in range(0, tl.minimum(K, most), BLOCK):
        k = j + tl.arange(0, BLOCK)
        inside = (k < K)[None, :] & alive[:, None]
        left = tl.load(left_ptr + row[:, None] * stride + k[None, :], mask=inside, other=0.0)
        if GATED:
            left = left * tl.sigmoid(left)
        inside = (k < K)[:, None] & (column < N)[None, :]
        weight = tl.load(weight_ptr + k[:, None] * ALONG + column[None, :] * ACROSS, mask=inside, other=0.0)
        total = tl.dot(left, weight, total, input_precision=PRECISION)
    return total


@triton.jit
def _norm(z, n_ptr, rate_ptr, row, alive, W: tl.constexpr):
    """Write what LayerNorm makes of rows z (TILE, W). The barrier shows it to the whole program."""
    z -= (tl.sum(z, 1) / W)[:, None]
    rate = tl.rsqrt(tl.sum(z * z, 1) / W + 1e-5)
    unit = tl.arange(0, W)
    tl.store(n_ptr + row[:, None] * W + unit[None, :], z * rate[:, None], mask=alive[:, None])
    tl.store(rate_ptr + row, rate, mask=alive)
    tl.debug_barrier()


@triton.jit
def _norm_back(g, n_ptr, rate_ptr, before_ptr, row, alive, W: tl.constexpr):
    """Write the gradient before LayerNorm and silu for g (TILE, W) behind them. The barrier: see `_norm`."""
    at = row[:, None] * W + tl.arange(0, W)[None, :]
    n = tl.load(n_ptr + at, mask=alive[:, None], other=0.0)
    rate = tl.load(rate_ptr + row, mask=alive, other=0.0)
    gate = tl.sigmoid(n)
    g *= gate * (1.0 + n * (1.0 - gate))
    g = g - (tl.sum(g, 1) / W)[:, None] - n * (tl.sum(g * n, 1) / W)[:, None]
    tl.store(before_ptr + at, g * rate[:, None], mask=alive[:, None])
    tl.debug_barrier()


@triton.jit(do_not_specialize=["n_rows", "x_m", "x_r", "most"])
def forward_kernel(
    x_ptr, weight0_ptr, bias0_ptr, weight1_ptr, bias1_ptr, weight2_ptr, bias2_ptr,
    n_ptr, rate_ptr, out_ptr, n_rows, x_m, x_r, most,
    X: tl.constexpr, W: tl.constexpr, Y: tl.constexpr, PAD: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of rows of one member through its layers; see `forward`."""
    member, members = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    alive = row < n_rows
    unit, column = tl.arange(0, W), tl.arange(0, PAD)
    n0_ptr, n1_ptr = n_ptr + member * n_rows * W, n_ptr + (members + member) * n_rows * W
    z = _product(
        x_ptr + member * x_m, x_r, row, alive, weight0_ptr + member * (X * W), unit, most,
        X, W, W, 1, False, TILE, BLOCK, PRECISION,
    )  # fmt: skip
    z += tl.load(bias0_ptr + member * W + unit)[None, :]
    _norm(z, n0_ptr, rate_ptr + member * n_rows, row, alive, W)
    z = _product(
        n0_ptr, W, row, alive, weight1_ptr + member * (W * W), unit, most,
        W, W, W, 1, True, TILE, BLOCK, PRECISION,
    )  # fmt: skip
    z += tl.load(bias1_ptr + member * W + unit)[None, :]
    _norm(z, n1_ptr, rate_ptr + (members + member) * n_rows, row, alive, W)
    out = _product(
        n1_ptr, W, row, alive, weight2_ptr + member * (W * Y), column, most,
        W, Y, Y, 1, True, TILE, BLOCK, PRECISION,
    )  # fmt: skip
    out += tl.load(bias2_ptr + member * Y + column, mask=column < Y, other=0.0)[None, :]
    inside = alive[:, None] & (column < Y)[None, :]
    tl.store(out_ptr + member * n_rows * Y + row[:, None] * Y + column[None, :], out, mask=inside)


@triton.jit(do_not_specialize=["n_rows", "most"])
def backward_kernel(
    above_ptr, weight0_ptr, weight1_ptr, weight2_ptr, n_ptr, rate_ptr, before_ptr, gx_ptr, n_rows, most,
    X: tl.constexpr, W: tl.constexpr, Y: tl.constexpr, PAD: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr, OF_X: tl.constexpr,
):  # fmt: skip
    """A tile of rows of one member back to the first layer, and to x if OF_X; see `backward`."""
    member, members = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    alive = row < n_rows
    unit = tl.arange(0, W)
    first, second = member * n_rows, (members + member) * n_rows
    g = _product(
        above_ptr + first * Y, Y, row, alive, weight2_ptr + member * (W * Y), unit, most,
        Y, W, 1, Y, False, TILE, BLOCK, PRECISION,
    )  # fmt: skip
    _norm_back(g, n_ptr + second * W, rate_ptr + second, before_ptr + second * W, row, alive, W)
    g = _product(
        before_ptr + second * W, W, row, alive, weight1_ptr + member * (W * W), unit, most,
        W, W, 1, W, False, TILE, BLOCK, PRECISION,
    )  # fmt: skip
    _norm_back(g, n_ptr + first * W, rate_ptr + first, before_ptr + first * W, row, alive, W)
    if OF_X:
        for begin in range(0, X, 64):
            column = begin + tl.arange(0, 64)
            gx = _product(
                before_ptr + first * W, W, row, alive, weight0_ptr + member * (X * W), column, most,
                W, X, 1, W, False, TILE, BLOCK, PRECISION,
            )  # fmt: skip
            inside = alive[:, None] & (column < X)[None, :]
            tl.store(gx_ptr + first * X + row[:, None] * X + column[None, :], gx, mask=inside)


@triton.jit
def _weight_tile(
    tile, left_ptr, stride, g_ptr, weight_ptr, bias_ptr, counted,
    K: tl.constexpr, N: tl.constexpr, GATED: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of leftᵀ g for rows left (counted, K), silu(left) if GATED, and g (counted, N); of Σ g, too."""
    TILES: tl.constexpr = (N + WIDE - 1) // WIDE
    k = tile // TILES * TALL + tl.arange(0, TALL)
    column = tile % TILES * WIDE + tl.arange(0, WIDE)
    total = tl.zeros((TALL, WIDE), tl.float32)
    sums = tl.zeros((BLOCK, WIDE), tl.float32)
    for begin in range(0, counted, BLOCK):
        row = begin + tl.arange(0, BLOCK)
        inside = (k < K)[:, None] & (row < counted)[None, :]
        left = tl.load(left_ptr + row[None, :] * stride + k[:, None], mask=inside, other=0.0)
        if GATED:
            left = left * tl.sigmoid(left)
        inside = (row < counted)[:, None] & (column < N)[None, :]
        g = tl.load(g_ptr + row[:, None] * N + column[None, :], mask=inside, other=0.0)
        total = tl.dot(left, g, total, input_precision=PRECISION)
        sums += g
    inside = (k < K)[:, None] & (column < N)[None, :]
    tl.store(weight_ptr + k[:, None] * N + column[None, :], total, mask=inside)
    if tile < TILES:
        tl.store(bias_ptr + column, tl.sum(sums, 0), mask=column < N)


@triton.jit(do_not_specialize=["n_rows", "counted", "x_m", "x_r"])
def weights_kernel(
    x_ptr, n_ptr, before_ptr, above_ptr,
    weight0_ptr, bias0_ptr, weight1_ptr, bias1_ptr, weight2_ptr, bias2_ptr, n_rows, counted, x_m, x_r,
    X: tl.constexpr, W: tl.constexpr, Y: tl.constexpr, PAD: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of one weight's gradient for one member: see `backward`."""
    tile, member, members = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    INPUT: tl.constexpr = (X + TALL - 1) // TALL * (W // WIDE)
    HIDDEN: tl.constexpr = W // TALL * (W // WIDE)
    first, second = member * n_rows, (members + member) * n_rows
    if tile < INPUT:
        _weight_tile(
            tile, x_ptr + member * x_m, x_r, before_ptr + first * W,
            weight0_ptr + member * (X * W), bias0_ptr + member * W, counted,
            X, W, False, TALL, WIDE, BLOCK, PRECISION,
        )  # fmt: skip
    elif tile < INPUT + HIDDEN:
        _weight_tile(
            tile - INPUT, n_ptr + first * W, W, before_ptr + second * W,
            weight1_ptr + member * (W * W), bias1_ptr + member * W, counted,
            W, W, True, TALL, WIDE, BLOCK, PRECISION,
        )  # fmt: skip
    else:
        _weight_tile(
            tile - INPUT - HIDDEN, n_ptr + second * W, W, above_ptr + first * Y,
            weight2_ptr + member * (W * Y), bias2_ptr + member * Y, counted,
            W, Y, True, TALL, WIDE, BLOCK, PRECISION,
        )  # fmt: skip

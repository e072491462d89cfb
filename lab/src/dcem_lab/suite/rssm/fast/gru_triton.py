# mypy: allow-untyped-defs
"""The operations of GRU and fully connected layers between matrix products, as one Triton kernel each.

The functions have the names and the meaning of the methods of `dcem_lab.suite.rssm.fast.unroll.Plain`.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

DTYPES = (torch.float16, torch.float32, torch.float64)
ALIGNMENT = 8  # numbers: 16 bytes of the smallest kind, the widest access there is
MANY = 1 << 18  # elements that keep all multiprocessors busy even if a thread takes eight of them


@triton.jit
def _place(n, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """Rows and columns of this program's elements, and which of them exist, in a matrix of n elements."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    alive = at < n
    if ALIGNED:
        alive = tl.max_constancy(alive, 8)
    return (at // COLUMNS).to(tl.int64), at % COLUMNS, alive


@triton.jit
def _at(pointer, member_stride, row, row_stride, unit, ALIGNED: tl.constexpr):
    """Where they are in this program's member of a tensor. ALIGNED: eight neighbours can be read as one."""
    offset = tl.program_id(1).to(tl.int64) * member_stride + row * row_stride + unit
    if ALIGNED:
        offset = tl.max_contiguous(tl.multiple_of(offset, 8), 8)
    return pointer + offset


@triton.jit
def _load(pointer, alive):
    """Data stored in half precision is processed in single precision."""
    x = tl.load(pointer, mask=alive)
    if x.dtype == tl.float16:
        x = x.to(tl.float32)
    return x


@triton.jit(
    do_not_specialize=["n", "gates_m", "inputs_m", "inputs_r", "hidden_m", "hidden_r", "out_m", "out_r"]
)
def _cell_kernel(
    gates_ptr, inputs_ptr, bias_ptr, hidden_ptr, out_ptr,
    n, gates_m, inputs_m, inputs_r, hidden_m, hidden_r, out_m, out_r,
    H: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    row, unit, alive = _place(n, H, BLOCK, ALIGNED)
    gates_ptr = _at(gates_ptr, gates_m, row, 4 * H, unit, ALIGNED)
    inputs_ptr = _at(inputs_ptr, inputs_m, row, inputs_r, unit, ALIGNED)
    bias_ptr = _at(bias_ptr, 4 * H, row, 0, unit, ALIGNED)
    new_h = _load(gates_ptr, alive) + _load(bias_ptr, alive)
    reset = _load(gates_ptr + H, alive) + _load(bias_ptr + H, alive)
    update = _load(gates_ptr + 2 * H, alive) + _load(bias_ptr + 2 * H, alive)
    reset = tl.sigmoid(reset + _load(inputs_ptr, alive))
    update = tl.sigmoid(update + _load(inputs_ptr + H, alive))
    new = _load(inputs_ptr + 2 * H, alive) + _load(bias_ptr + 3 * H, alive)
    new = 2.0 * tl.sigmoid(2.0 * (new + reset * new_h)) - 1.0
    hidden = _load(_at(hidden_ptr, hidden_m, row, hidden_r, unit, ALIGNED), alive)
    tl.store(gates_ptr, new_h, mask=alive)
    tl.store(gates_ptr + H, reset, mask=alive)
    tl.store(gates_ptr + 2 * H, update, mask=alive)
    tl.store(gates_ptr + 3 * H, new, mask=alive)
    out_ptr = _at(out_ptr, out_m, row, out_r, unit, ALIGNED)
    tl.store(out_ptr, new + update * (hidden - new), mask=alive)


@triton.jit(
    do_not_specialize=[
        "n", "gates_m", "hidden_m", "hidden_r", "above_m", "above_r", "grad_m", "below_m", "below_r",
    ]
)  # fmt: skip
def _cell_backward_kernel(
    gates_ptr, hidden_ptr, above_ptr, grad_ptr, below_ptr,
    n, gates_m, hidden_m, hidden_r, above_m, above_r, grad_m, below_m, below_r,
    H: tl.constexpr, BELOW: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    row, unit, alive = _place(n, H, BLOCK, ALIGNED)
    gates_ptr = _at(gates_ptr, gates_m, row, 4 * H, unit, ALIGNED)
    grad_ptr = _at(grad_ptr, grad_m, row, 4 * H, unit, ALIGNED)
    new_h = _load(gates_ptr, alive)
    reset = _load(gates_ptr + H, alive)
    update = _load(gates_ptr + 2 * H, alive)
    new = _load(gates_ptr + 3 * H, alive)
    hidden = _load(_at(hidden_ptr, hidden_m, row, hidden_r, unit, ALIGNED), alive)
    above = _load(_at(above_ptr, above_m, row, above_r, unit, ALIGNED), alive)
    of_new = above * (1.0 - update) * (1.0 - new * new)
    tl.store(grad_ptr, of_new * reset, mask=alive)
    tl.store(grad_ptr + H, of_new * new_h * reset * (1.0 - reset), mask=alive)
    tl.store(grad_ptr + 2 * H, above * (hidden - new) * update * (1.0 - update), mask=alive)
    tl.store(grad_ptr + 3 * H, of_new, mask=alive)
    if BELOW:
        below_ptr = _at(below_ptr, below_m, row, below_r, unit, ALIGNED)
        tl.store(below_ptr, _load(below_ptr, alive) + above * update, mask=alive)


@triton.jit(do_not_specialize=["n", "before_m", "after_m"])
def _layer_kernel(
    before_ptr, bias_ptr, after_ptr, n, before_m, after_m,
    W: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    row, unit, alive = _place(n, W, BLOCK, ALIGNED)
    before_ptr = _at(before_ptr, before_m, row, W, unit, ALIGNED)
    x = _load(before_ptr, alive) + _load(_at(bias_ptr, W, row, 0, unit, ALIGNED), alive)
    if ACTIVATION == "relu":
        y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "elu":
        y = tl.where(x > 0.0, x, tl.exp(x) - 1.0)
    else:
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    tl.store(before_ptr, x, mask=alive)
    tl.store(_at(after_ptr, after_m, row, W, unit, ALIGNED), y, mask=alive)


def _launch(kernel: Any, shape: torch.Size, tensors: list[Tensor], strides: list[int], **sizes: Any) -> None:
    """Launch it for all elements: one per thread if they are few, otherwise several, read with one access."""
    members, rows, columns = shape
    aligned = all(length % ALIGNMENT == 0 for length in (columns, *strides))
    n, block = rows * columns, 128 if rows * columns < MANY else 1024
    with torch.cuda.device(tensors[0].device):
        kernel[triton.cdiv(n, block), members](*tensors, n, *strides, BLOCK=block, ALIGNED=aligned, **sizes)


def prepare(gates: Tensor, inputs: Tensor, input_weight: Tensor, bias: Tensor) -> Tensor:
    return torch.bmm(inputs, input_weight)


def advance(
    gates: Tensor, prepared: Tensor, hidden: Tensor, hidden_weight: Tensor, bias: Tensor, out: Tensor
) -> None:
    H = hidden.shape[-1]
    torch.bmm(hidden, hidden_weight, out=gates[..., : 3 * H])
    strides = [gates.stride(0), *prepared.stride()[:2], *hidden.stride()[:2], *out.stride()[:2]]
    _launch(_cell_kernel, hidden.shape, [gates, prepared, bias, hidden, out], strides, H=H)


def slopes(gates: Tensor, hidden: Tensor) -> Tensor:
    """Room for what `retreat` writes: the slopes themselves it does not need."""
    return hidden.new_empty(*hidden.shape[:-1], 4, hidden.shape[-1])


def retreat(grad_gates: Tensor, gates: Tensor, hidden: Tensor, above: Tensor, below: Tensor | None) -> None:
    target = above if below is None else below
    strides = [
        gates.stride(0), *hidden.stride()[:2], *above.stride()[:2], grad_gates.stride(0), *target.stride()[:2]
    ]  # fmt: skip
    tensors = [gates, hidden, above, grad_gates, target]
    has_below = below is not None
    _launch(_cell_backward_kernel, hidden.shape, tensors, strides, H=hidden.shape[-1], BELOW=has_below)


def layer(x: Tensor, weight: Tensor, bias: Tensor, activation: str, before: Tensor, after: Tensor) -> None:
    torch.bmm(x, weight, out=before)
    strides, sizes = [before.stride(0), after.stride(0)], {"W": before.shape[-1], "ACTIVATION": activation}
    _launch(_layer_kernel, before.shape, [before, bias, after], strides, **sizes)

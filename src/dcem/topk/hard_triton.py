# mypy: allow-untyped-defs
"""The hard top-k as one Triton kernel: one program per row, the row in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_ROW = 16384  # a longer row does not fit the registers of one program


@triton.jit
def _kernel(
    x_ptr,
    k_ptr,
    y_ptr,
    k_number,
    n,
    K_IS_TENSOR: tl.constexpr,
    FINITE_ONLY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    present = column < n
    x = tl.load(x_ptr + row * n + column, mask=present, other=0.0)
    k = tl.load(k_ptr + row).to(tl.float32) if K_IS_TENSOR else k_number
    good = present & (x > float("-inf"))  # neither -inf nor NaN
    if FINITE_ONLY:
        good = present & (x - x == 0.0)
    # Integer keys in the order of the numbers: their bits, flipped if negative. Excluded entries get key 0.
    bits = x.to(tl.uint32, bitcast=True)
    key = tl.where(bits >> 31 == 1, ~bits, bits | 0x80000000)
    key = tl.where(good, key, 0).to(tl.uint32)
    chosen = tl.minimum(tl.ceil(k), tl.sum(good.to(tl.float32), 0)).to(tl.int32)

    # The last chosen key, bit by bit: the largest number that enough keys reach.
    last = tl.full((), 0, tl.uint32)
    for place in range(32):
        candidate = last | (tl.full((), 0x80000000, tl.uint32) >> place)
        last = tl.where(tl.sum((key >= candidate).to(tl.int32), 0) >= chosen, candidate, last)

    above = key > last
    equal = good & (key == last)
    rank = tl.cumsum(equal.to(tl.int32), 0)
    room = chosen - tl.sum(above.to(tl.int32), 0)
    weight = tl.where(above | (equal & (rank < room)), 1.0, 0.0)
    share = tl.minimum(k - (chosen - 1), 1.0)  # the fractional part of k
    weight = tl.where(equal & (rank == room), share, weight)
    tl.store(y_ptr + row * n + column, weight, mask=present)


def hard_topk(x: Tensor, k: float | Tensor, finite_only: bool) -> Tensor:
    """See `dcem.topk.hard.hard_topk`; equal entries are taken from the left. x is float32."""
    x = x.contiguous()
    n = x.shape[-1]
    y = torch.empty_like(x)
    if isinstance(k, Tensor):
        k_tensor, k_number = k.expand(*x.shape[:-1], 1).contiguous(), 0.0
    else:
        k_tensor, k_number = x, float(k)
    block = triton.next_power_of_2(n)
    with torch.cuda.device_of(x):
        _kernel[(x.numel() // n,)](
            x, k_tensor, y, k_number, n,
            K_IS_TENSOR=k_tensor is not x, FINITE_ONLY=finite_only, BLOCK=block,
            num_warps=min(max(block // 512, 1), 16),
        )  # fmt: skip
    return y

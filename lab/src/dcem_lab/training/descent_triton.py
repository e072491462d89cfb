# mypy: allow-untyped-defs
"""A gradient step on CUDA, with clipping and moving average, in three launches.

Parameters, averages, gradients and moments are each moved into one buffer, so that a kernel passes over all
of them at once. The sum of squares is added in the same order in every run.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

DEVICES: tuple[str, ...] = ("cuda",)  # tests change this
BETAS = (0.9, 0.999)
BLOCK = 2048  # numbers of a program
APART = 64  # every tensor begins at a multiple of this many numbers, for the sake of wide reads


def fits(parameters: Sequence[Tensor]) -> bool:
    """Whether these can be moved into one buffer, on a device that there are kernels for."""
    return all(p.device.type in DEVICES and p.dtype == torch.float32 for p in parameters)


class Fused:
    """See `dcem_lab.training.descent.descent`."""

    def __init__(
        self, parameters: Sequence[Tensor], averages: Sequence[Tensor], config: Any, eps: float
    ) -> None:
        self._numbers = {"lr": config.lr, "eps": eps, "clip": config.clip, "decay": config.average}
        self._weights, self._averages = _in_one_piece(parameters), _in_one_piece(averages)
        self._gradient, self._first, self._second = (torch.zeros_like(self._weights) for _ in range(3))
        self._gradients, self._firsts, self._seconds = (
            _like(parameters, flat) for flat in (self._gradient, self._first, self._second)
        )
        self._programs = triton.cdiv(len(self._weights), BLOCK)
        self._squares = self._weights.new_zeros(self._programs)
        self._count, self._norm = self._weights.new_zeros(()), self._weights.new_zeros(())

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> Tensor:
        # Contiguous, since otherwise this is one launch per tensor.
        torch._foreach_copy_(self._gradients, [gradient.contiguous() for gradient in gradients])
        n = len(self._weights)
        with torch.cuda.device_of(self._weights):
            square_kernel[(self._programs,)](self._gradient, self._squares, self._count, n, BLOCK=BLOCK)
            adam_kernel[(self._programs,)](
                self._weights, self._averages, self._gradient, self._first, self._second,
                self._squares, self._count, self._norm, n, self._programs, **self._numbers,
                BETA1=BETAS[0], BETA2=BETAS[1], LOG1=math.log(BETAS[0]), LOG2=math.log(BETAS[1]),
                PARTS=triton.next_power_of_2(self._programs), BLOCK=BLOCK,
            )  # fmt: skip
        return self._norm

    def state_dict(self) -> dict[int, Any]:
        moments = zip(self._firsts, self._seconds, strict=True)
        return {
            i: {"step": self._count.clone(), "exp_avg": first, "exp_avg_sq": second}
            for i, (first, second) in enumerate(moments)
        }

    def load_state_dict(self, state: Mapping[int, Any]) -> None:
        for i, saved in state.items():
            self._count.copy_(saved["step"])
            self._firsts[i].copy_(saved["exp_avg"])
            self._seconds[i].copy_(saved["exp_avg_sq"])


def _in_one_piece(tensors: Sequence[Tensor]) -> Tensor:
    """Move the tensors into one buffer, which is returned."""
    flat = tensors[0].new_zeros(sum(_room(t) for t in tensors))
    for t, place in zip(tensors, _like(tensors, flat), strict=True):
        t.data = place.copy_(t.detach())
    return flat


def _like(tensors: Sequence[Tensor], flat: Tensor) -> list[Tensor]:
    """The parts of the buffer, in the shapes of the tensors."""
    parts = flat.split([_room(t) for t in tensors])
    return [part[: t.numel()].view(t.shape) for t, part in zip(tensors, parts, strict=True)]


def _room(t: Tensor) -> int:
    return -(-t.numel() // APART) * APART


@triton.jit(do_not_specialize=["n"])
def square_kernel(gradient_ptr, squares_ptr, count_ptr, n, BLOCK: tl.constexpr):
    """Each program's sum of squares. The first one counts the step."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gradient_ptr + at, mask=at < n, other=0.0)
    tl.store(squares_ptr + tl.program_id(0), tl.sum(g * g, 0))
    if tl.program_id(0) == 0:
        tl.store(count_ptr, tl.load(count_ptr) + 1.0)


@triton.jit(do_not_specialize=["n", "programs", "lr", "eps", "clip", "decay"])
def adam_kernel(
    weights_ptr, averages_ptr, gradient_ptr, first_ptr, second_ptr, squares_ptr, count_ptr, norm_ptr,
    n, programs, lr, eps, clip, decay,
    BETA1: tl.constexpr, BETA2: tl.constexpr, LOG1: tl.constexpr, LOG2: tl.constexpr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    part = tl.arange(0, PARTS)
    norm = tl.sqrt(tl.sum(tl.load(squares_ptr + part, mask=part < programs, other=0.0), 0))
    if tl.program_id(0) == 0:
        tl.store(norm_ptr, norm)
    scale = clip / (norm + 1e-6)
    scale = tl.where(scale >= 1.0, 1.0, scale)  # stays NaN

    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    alive = at < n
    g = scale * tl.load(gradient_ptr + at, mask=alive, other=0.0)
    first = tl.load(first_ptr + at, mask=alive, other=0.0)
    first += (1.0 - BETA1) * (g - first)
    second = tl.load(second_ptr + at, mask=alive, other=0.0)
    second += (1.0 - BETA2) * (g * g - second)
    count = tl.load(count_ptr).to(tl.float64)
    bias1 = (1.0 - tl.exp(count * LOG1)).to(tl.float32)
    bias2 = (1.0 - tl.exp(count * LOG2)).to(tl.float32)
    weight = tl.load(weights_ptr + at, mask=alive, other=0.0)
    weight -= lr / bias1 * first / (tl.sqrt(second) / tl.sqrt(bias2) + eps)
    average = tl.load(averages_ptr + at, mask=alive, other=0.0)
    tl.store(first_ptr + at, first, mask=alive)
    tl.store(second_ptr + at, second, mask=alive)
    tl.store(weights_ptr + at, weight, mask=alive)
    tl.store(averages_ptr + at, weight + decay * (average - weight), mask=alive)

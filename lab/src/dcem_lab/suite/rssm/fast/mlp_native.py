"""Networks of critics and actors on the CPU in C++: lines of a batch pass through all layers while cached.

The products are those of `native.cpp`, too: on some CPUs twice as fast as torch's. Everything is float32.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from dcem_lab.suite.rssm.fast import native

_ALONE = 500_000  # multiplications below which one thread finishes before others have started
_LANES = 16  # a width must be a multiple


class _Networks(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("M", "N", "X", "W", "Y", "x_member", "x_row")),
        ("x", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p * 6),
    ]

    def __init__(self, x: Tensor, parameters: Sequence[Tensor]) -> None:
        self.held = [x if x.stride(-1) == 1 else x.contiguous(), *(p.contiguous() for p in parameters)]
        x, *parameters = self.held
        sizes = *x.shape, *parameters[4].shape[1:], *x.stride()[:2]
        super().__init__(*sizes, x.data_ptr(), _pointers(parameters))

    @property
    def threads(self) -> int:
        return torch.get_num_threads() if self.M * self.N * self.W**2 >= _ALONE else 1


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))


def fits(x: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Whether there are kernels for the device of x, and for these sizes."""
    return parameters[0].shape[-1] % _LANES == 0 and native.fits(x)


def precision() -> str:
    """Of products."""
    return "ieee"


def forward(x: Tensor, parameters: Sequence[Tensor], precision: str) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (M, N, Y), and of both LayerNorms n (2, M, N, W) and 1 / σ (2, M, N)."""
    nets = _Networks(x, parameters)
    out, rates = x.new_empty(nets.M, nets.N, nets.Y), x.new_empty(2, nets.M, nets.N)
    kept = x.new_empty(*rates.shape, nets.W)
    native.library().normed_forward(
        ctypes.byref(nets), kept.data_ptr(), rates.data_ptr(), out.data_ptr(), nets.threads
    )
    return out, kept, rates


def backward(
    above: Tensor, x: Tensor, parameters: Sequence[Tensor], kept: Tensor, rates: Tensor,
    of_x: bool, of_parameters: bool, precision: str,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of x and of the parameters for that of the outputs, `above`; None where not asked for."""
    nets, above = _Networks(x, parameters), above.contiguous()
    gx = x.new_empty(x.shape) if of_x else None
    gradients = [x.new_zeros(p.shape) for p in parameters] if of_parameters else []
    native.library().normed_backward(
        ctypes.byref(nets), kept.data_ptr(), rates.data_ptr(), above.data_ptr(),
        None if gx is None else gx.data_ptr(), _pointers(gradients) if gradients else None, nets.threads,
    )  # fmt: skip
    return [gx, *gradients, *[None] * (6 - len(gradients))]

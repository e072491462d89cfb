"""The C++ kernels of `native.cpp`, built at first use if there is a compiler."""

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dcem import _native

_SOURCE = Path(__file__).with_name("native.cpp")
_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


@functools.cache
def library() -> Any:
    """The kernels; None if they are not available."""
    found = _native.build(_SOURCE, _instructions())
    if found is not None:
        found.rollout.argtypes = [_POINTER, *[_LONG] * 9, *[_INT] * 2, *[_POINTER] * 4, _INT]
        found.judge.argtypes = [_POINTER, *[_LONG] * 6, *[_POINTER] * 2, _INT]
        found.normed_forward.argtypes = [*[_POINTER] * 4, _INT]
        found.normed_backward.argtypes = [*[_POINTER] * 6, _INT]
        found.products.argtypes = [_POINTER, _INT]
    return found


def _instructions() -> list[str]:
    """Compiler flags for this CPU."""
    capability = torch.backends.cpu.get_cpu_capability()
    if capability != "AVX512":
        return ["-mavx2", "-mfma"] if capability == "AVX2" else []
    bfloat16 = ["-mavx512bf16"] if torch.cpu._is_avx512_bf16_supported() else []
    return ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", *bfloat16]


def fits(x: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Are there kernels for a network with weights like x, on its device, with products in that precision?"""
    if x.device.type != "cpu" or x.dtype != torch.float32 or (found := library()) is None:
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(found.has_bfloat16()))

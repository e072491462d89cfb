"""Whether the fused kernels between two evaluations of the objective are used. Experimental: on request."""

import os

import torch
from torch import Tensor

from dcem._checks import is_transformed

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton runs its kernels in Python, on CPU tensors


def wanted(x: Tensor) -> bool:
    """For tensors like x, on CUDA, with DCEM_FUSED=1 in the environment?"""
    if not (x.is_cuda or INTERPRETED) or x.dtype not in (torch.float32, torch.float64) or is_transformed():
        return False
    return os.environ.get("DCEM_FUSED") == "1"

"""Whether the fused kernels between two evaluations of the objective are used."""

import torch
from torch import Tensor

from dcem._checks import is_transformed

DEVICES: tuple[str, ...] = ("cuda",)  # tests and benchmarks change this
# Numbers in a row's samples: one program reads them all, where torch shares them out. An estimate of where,
# with a single row, that takes as long as the launches it saves.
LONGEST = 2**17


def wanted(x: Tensor) -> bool:
    """For samples like x (*B, N, n)?"""
    if x.device.type not in DEVICES or x.dtype not in (torch.float32, torch.float64) or is_transformed():
        return False
    return x.numel() > 0 and x.shape[-2] * x.shape[-1] <= LONGEST

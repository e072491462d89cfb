"""Looking at values: where it is free, and what there is to see."""

import math

import torch
from torch import Tensor


def can_look(x: Tensor) -> bool:
    """Is reading a value free here? Not on an accelerator, which would stall, nor inside a transform."""
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    return x.device.type == "cpu"


def is_transformed() -> bool:
    """Is this call being compiled, or inside `torch.func`? Autograd functions of our own do not go there."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def all_finite(x: Tensor) -> bool:
    """One cheap look: False when an entry is NaN or infinite (or, never mind, when only their sum is)."""
    return math.isfinite(x.sum().item())

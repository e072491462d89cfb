"""The device of a training."""

import torch

DEVICES = ("auto", "cpu", "cuda")


def choose_device(name: str = "auto") -> torch.device:
    """The device that `cpu`, `cuda` or `auto` means on this machine."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def training_device(name: str) -> torch.device:
    """The same, set up for training: tensor cores may round single precision."""
    device = choose_device(name)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    return device

"""The same seed twice on a CUDA device, where sums may be added in another order: how far apart they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dcem_lab import experiments
from dcem_lab.runs import load_checkpoint
from dcem_lab.runs.tree import encode
from reliability import repeats
from reliability.outcome import Outcome
from reliability.training import tiny, train


def measure(count: int, folder: Path) -> Outcome:
    """The largest difference between any two numbers of the states, relative to the largest number there."""
    found, missing = {}, []
    for name in list(experiments.EXPERIMENTS)[:count]:
        try:
            config = tiny(name)
            if name in repeats.SOURCES:  # it starts from another run, whose drift would be its own
                continue
            if hasattr(config, "device"):
                config = tiny(name, device="cuda")
            for again in ("first", "second"):
                train(name, folder / name / again, config)
        except ModuleNotFoundError as error:
            missing.append(f"{name} needs {error.name}")
            continue
        first, second = (state(folder / name / again) for again in ("first", "second"))
        if first:  # some only gather metrics, and leave nothing that was computed on the device
            found[name] = difference(first, second)
    notes = ", ".join(f"{name} {apart:.2g}" for name, apart in found.items())
    return Outcome(len(found), notes="; ".join([f"relative difference: {notes}", *missing]))


def state(run: Path) -> dict[str, torch.Tensor]:
    tree: Any = load_checkpoint(run).tree
    return {name: x for name, x in encode(tree["objects"])[1].items() if x.is_floating_point()}


def difference(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    def relative(a: torch.Tensor, b: torch.Tensor) -> float:
        a, b = a.double().nan_to_num(posinf=0, neginf=0), b.double().nan_to_num(posinf=0, neginf=0)
        return float((a - b).abs().max() / a.abs().max().clamp_min(1e-30))

    return max(relative(x, second[name]) for name, x in first.items() if x.numel())

"""The same seed twice: every experiment's tiny preset ends with the same bits (CPU)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from dcem_lab import experiments
from reliability.outcome import Outcome
from reliability.training import digest, tiny, train

SOURCES = {"embed": "planet", "ppo": "embed"}  # what starts from a run of what


def measure(count: int, folder: Path) -> Outcome:
    """Each of the first `count` experiments, twice; what another is trained from comes first."""
    torch.set_num_threads(1)
    failures, slowest = [], 0.0
    names = list(experiments.EXPERIMENTS)[:count]
    for name in names:
        began = time.monotonic()
        digests = []
        for again in ("first", "second"):
            run = folder / name / again
            train(name, run, config(name, folder))
            digests.append(digest(run))
        slowest = max(slowest, time.monotonic() - began)
        if digests[0] != digests[1]:
            failures.append(f"{name}: {digests[0]} and then {digests[1]}")
    return Outcome(len(names), failures, slowest, f"SHA-256 of state and log: {', '.join(names)}")


def config(name: str, folder: Path) -> Any:
    """The tiny preset, on a run of the experiment before it where it needs one."""
    if name not in SOURCES:
        return tiny(name)
    source = folder / SOURCES[name] / "source"
    if not source.exists():
        train(SOURCES[name], source, config(SOURCES[name], folder))
    return tiny(name, source=str(source))

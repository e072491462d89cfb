"""Every random number generator of the process: seeded, saved, restored."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from dcem_lab.runs.tree import Tree

Generator = torch.Generator | np.random.Generator
MAX_SEED = 2**32 - 1  # the most that every one of them takes


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch (all devices)."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be from 0 to {MAX_SEED}, got {seed}")
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (libraries that draw from it exist)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Tree]:
    """The states of the global generators, as a tree that a checkpoint holds.

    >>> state = rng_state()
    >>> first = torch.rand(3)
    >>> set_rng_state(state)
    >>> torch.equal(first, torch.rand(3))
    True
    """
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: Any) -> None:
    """Put back what `rng_state` returned. CUDA states need the same number of devices, and else stay."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def generator_state(generator: Generator) -> Tree:
    """One generator's state: a tensor (torch) or a dict of numbers (NumPy)."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return dict(generator.bit_generator.state)


def set_generator_state(generator: Generator, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state

"""The state of an experiment: objects and random generators, captured as a tree and restored in place."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from dcem_lab.runs.tree import Tree

MAX_SEED = 2**32 - 1  # the most that every generator takes


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch (all devices)."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be from 0 to {MAX_SEED}, got {seed}")
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (libraries that draw from it exist)
    torch.manual_seed(seed)


@runtime_checkable
class HasStateDict(Protocol):
    """Modules, optimisers, schedulers, and anything of ours that is saved and restored whole."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


# A plain dict is for counters and histories: it is refilled in place.
Restorable = HasStateDict | torch.Generator | np.random.Generator | dict[str, Any]


def check_restorable(objects: Mapping[str, Restorable]) -> None:
    for name, thing in objects.items():
        if not isinstance(thing, HasStateDict | torch.Generator | np.random.Generator | dict):
            raise TypeError(
                f"state[{name!r}] must have state_dict() and load_state_dict(), or be a random generator "
                f"or a dict, got {type(thing).__name__}"
            )


def capture(objects: Mapping[str, Restorable]) -> Tree:
    """The state of every object and of the global random generators."""
    rng = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    return {"objects": {name: _capture(thing) for name, thing in objects.items()}, "rng": rng}


def restore(objects: Mapping[str, Restorable], tree: Any) -> None:
    """Put every object and the global random generators back to what `capture` saw.

    CUDA generators need the same number of devices, and else stay as they are.
    """
    saved, rng = tree["objects"], tree["rng"]
    if set(saved) != set(objects):
        raise ValueError(f"the saved state has {sorted(saved)} and this program has {sorted(objects)}")
    for name, thing in objects.items():
        _restore(thing, saved[name])
    random.setstate(rng["python"])
    np.random.set_state(rng["numpy"])  # noqa: NPY002
    torch.set_rng_state(rng["torch"])
    if torch.cuda.is_available() and len(rng["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(rng["cuda"])


def _capture(thing: Restorable) -> Tree:
    if isinstance(thing, dict):
        return thing
    if isinstance(thing, torch.Generator):
        return thing.get_state()
    return dict(thing.bit_generator.state) if isinstance(thing, np.random.Generator) else thing.state_dict()


def _restore(thing: Restorable, saved: Any) -> None:
    if isinstance(thing, dict):
        thing.clear()
        thing.update(saved)
    elif isinstance(thing, torch.Generator):
        thing.set_state(saved)
    elif isinstance(thing, np.random.Generator):
        thing.bit_generator.state = saved
    else:
        thing.load_state_dict(saved)

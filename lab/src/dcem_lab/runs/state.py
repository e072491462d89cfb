"""The state of an experiment: named objects, captured as a tree and restored in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from dcem_lab.runs.seeds import Generator, generator_state, rng_state, set_generator_state, set_rng_state
from dcem_lab.runs.tree import Tree


@runtime_checkable
class HasStateDict(Protocol):
    """Modules, optimisers, schedulers, and anything of ours that is saved and restored whole."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


# A plain dict is for counters and histories: it is refilled in place.
Restorable = HasStateDict | Generator | dict[str, Any]


def check_restorable(objects: Mapping[str, Restorable]) -> None:
    for name, thing in objects.items():
        if not isinstance(thing, HasStateDict | torch.Generator | np.random.Generator | dict):
            raise TypeError(
                f"state[{name!r}] must have state_dict() and load_state_dict(), or be a random generator "
                f"or a dict, got {type(thing).__name__}"
            )


def capture(objects: Mapping[str, Restorable]) -> Tree:
    """The state of every object and of the global random generators."""
    return {"objects": {name: _capture(thing) for name, thing in objects.items()}, "rng": rng_state()}


def restore(objects: Mapping[str, Restorable], tree: Any) -> None:
    """Put every object and the global random generators back to what `capture` saw."""
    saved = tree["objects"]
    if set(saved) != set(objects):
        raise ValueError(f"the saved state has {sorted(saved)} and this program has {sorted(objects)}")
    for name, thing in objects.items():
        _restore(thing, saved[name])
    set_rng_state(tree["rng"])


def _capture(thing: Restorable) -> Tree:
    if isinstance(thing, dict):
        return thing
    return thing.state_dict() if isinstance(thing, HasStateDict) else generator_state(thing)


def _restore(thing: Restorable, saved: Any) -> None:
    if isinstance(thing, dict):
        thing.clear()
        thing.update(saved)
    elif isinstance(thing, HasStateDict):
        thing.load_state_dict(saved)
    else:
        set_generator_state(thing, saved)

"""A collection of learners, updated together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dcem_lab.training.fit import Fit
from dcem_lab.training.stopwatch import Stopwatch


class Learners:
    """Learners by the names that their states have in a checkpoint, all on one device.

    A step makes the updates due for each learner, in order.
    """

    def __init__(self, learners: Mapping[str, Fit], device: torch.device | str) -> None:
        self.by_name = dict(learners)
        self.stopwatch = Stopwatch(torch.device(device))

    def __getitem__(self, name: str) -> Any:
        return self.by_name[name]

    def step(self) -> None:
        """The updates for one step of the agent. Does not wait for the device."""
        for learner in self.by_name.values():
            with self.stopwatch.measure(f"{learner.tag}_update".lstrip("_")):
                learner.keep_pace()

    def metrics(self) -> dict[str, float]:
        """Metrics of all learners, and the stopwatch's milliseconds. Waits for the device."""
        metrics = {
            f"{learner.tag}/{name}".lstrip("/"): value
            for learner in self.by_name.values()
            for name, value in {**learner.metrics(), "updates": learner.updates}.items()
        }
        return metrics | {f"ms/{part}": value for part, value in self.stopwatch.read().items()}

    def state_dict(self) -> dict[str, Any]:
        return {name: learner.state_dict() for name, learner in self.by_name.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`, before the first update."""
        for name, learner in self.by_name.items():
            learner.load_state_dict(state[name])

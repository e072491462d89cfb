"""What experiments with an agent in environments share: devices, schedules, figures, evaluations."""

from __future__ import annotations

import math
import time

import numpy as np
import torch

from dcem.agents import Controller, Planet
from dcem.envs.vector import ParallelEnv

SELECTION_SEED = 2_000_000
"""Seeds of episodes that choose the best weights count from here, apart from those of training and `eval`."""


def choose_device(name: str) -> torch.device:
    """What `cpu`, `cuda` or `auto` stands for here."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def every(interval: float, n: int) -> set[int]:
    """The multiples of an interval, rounded up, below n, and n.

    >>> sorted(every(2.5, 9))
    [3, 5, 8, 9]
    """
    return {math.ceil(k * interval) for k in range(1, math.ceil(n / interval))} | {n}


class Clock:
    """How fast a count goes up."""

    def __init__(self, count: int) -> None:
        self._count, self._time = count, time.monotonic()

    def lap(self, count: int) -> float:
        """Counts a second since the last lap."""
        now = time.monotonic()
        rate = (count - self._count) / max(now - self._time, 1e-9)
        self._count, self._time = count, now
        return rate


def summary(agent: Planet, rate: float) -> dict[str, float]:
    """What people watch first, then what explains it. Waits for the device."""
    losses, times = agent.learner.read(), agent.stopwatch.read()
    returns = agent.collector.returns
    return {
        **({"return": float(np.mean(returns))} if returns else {}),
        "env_steps_per_s": rate,
        **losses,
        **{f"ms/{part}": value for part, value in times.items()},
        "episodes": agent.collector.episodes,
        "updates": agent.learner.updates,
    }


def evaluate(controller: Controller, envs: ParallelEnv, first_seed: int) -> dict[str, float]:
    """Statistics of an episode in every environment, the seeds counting from the first; all at once."""
    start = time.monotonic()
    seeds = range(first_seed, first_seed + envs.num_envs)
    returns = [episode.total for episode in controller.play(envs, seeds)]
    q1, median, q3 = np.percentile(returns, [25, 50, 75]).tolist()
    seconds = time.monotonic() - start
    figures = {"mean": float(np.mean(returns)), "median": median, "q1": q1, "q3": q3, "seconds": seconds}
    return {f"eval/{name}": value for name, value in figures.items()}

"""What experiments with an agent in environments share: devices, schedules, figures, evaluations."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import torch

from dcem.agents import Controller, Planet
from dcem.envs.vector import ParallelEnv
from dcem.runs import require

SELECTION_SEED = 2_000_000
"""Seeds of episodes that choose the best weights count from here, apart from those of training and `eval`."""


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """What every training of an agent in environments is told, beside the agent.

    Attributes:
        seed: of everything.
        n_envs: environments stepped and planned for at once.
        n_workers: processes they run in; 0 for this one.
        eval_every: environment steps between evaluations, whose best weights are kept.
        eval_episodes: episodes of an evaluation, all at once.
        save_every: seconds between checkpoints.
        device: cpu, cuda, or auto for cuda where there is one.
    """

    seed: int = 0
    n_envs: int = 16
    n_workers: int = 16
    eval_every: int = 20_000
    eval_episodes: int = 32
    save_every: float = 300.0
    device: str = "auto"

    def __post_init__(self) -> None:
        self._at_least_one("n_envs", "eval_every", "eval_episodes")
        require(0 <= self.n_workers <= self.n_envs, "n_workers", self.n_workers, f"from 0 to {self.n_envs}")
        require(self.save_every > 0, "save_every", self.save_every, "positive")
        require(self.device in ("auto", "cpu", "cuda"), "device", self.device, "auto, cpu or cuda")

    def _at_least_one(self, *names: str) -> None:
        for name in names:
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")


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

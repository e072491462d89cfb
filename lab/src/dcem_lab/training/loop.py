"""The training loop of any agent: step it, evaluate it at intervals, keep its best weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from dcem_lab.runs import Run
from dcem_lab.runs.state import HasStateDict, Restorable


class Agent(HasStateDict, Protocol):
    """The interface of an agent that the loop uses."""

    def step(self) -> None:
        """Act and learn, once."""

    def metrics(self) -> dict[str, float]:
        """Metrics of the steps since the last reading, to log. Waits for the device."""


class Kept(HasStateDict, Protocol):
    """What keeps the weights of the best evaluation."""

    score: float

    def keep_if_best(self, score: float) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When a training is logged and evaluated, counted in steps of the agent.

    Attributes:
        steps: of the whole training.
        env_steps: environment steps in each of them.
        evaluations: the counts of finished steps at which it is evaluated.
        log_every: steps between records.
        save_every: seconds between checkpoints.
        beforehand: a record is about the agent before its step, from the first to what the last one left:
            how it played, with noise and without. Else it is about the agent after the step.
    """

    steps: int
    env_steps: int
    evaluations: Collection[int]
    log_every: int = 1
    save_every: float = 300.0
    beforehand: bool = False


def train(
    run: Run, agent: Agent, trained: Kept, evaluate: Callable[[], dict[str, float]], schedule: Schedule
) -> None:
    """Train to the end of the schedule; `evaluate` returns the score ``eval/mean`` among its metrics."""
    clock = Clock(run.step)

    def look(done: int) -> dict[str, float]:
        metrics = evaluate()
        trained.keep_if_best(metrics["eval/mean"])
        clock.lap(done)  # evaluations do not count
        return {**metrics, "eval/best": trained.score}

    state: dict[str, Restorable] = {"agent": agent, "trained": trained}
    for step in run.steps(schedule.steps, state, save_every=schedule.save_every):
        done = step + 1
        count = step if schedule.beforehand else done
        due = count in schedule.evaluations
        seen = look(step) if due and schedule.beforehand else {}
        agent.step()
        if due or done % schedule.log_every == 0:
            metrics = agent.metrics()
            rate = clock.lap(done) * schedule.env_steps
            if due and not schedule.beforehand:
                seen = look(done)
            run.log(step, env_steps=count * schedule.env_steps, env_steps_per_s=rate, **metrics, **seen)
        if schedule.beforehand and done == schedule.steps:
            run.log(done, env_steps=done * schedule.env_steps, **look(done))


def every(interval: float, n: int) -> set[int]:
    """The multiples of an interval, rounded up, below n, and n.

    >>> sorted(every(2.5, 9))
    [3, 5, 8, 9]
    """
    return {math.ceil(k * interval) for k in range(1, math.ceil(n / interval))} | {n}


class Clock:
    """The rate of a counter."""

    def __init__(self, count: int) -> None:
        self._count, self._time = count, time.monotonic()

    def lap(self, count: int) -> float:
        """Counts per second since the last lap."""
        now = time.monotonic()
        rate = (count - self._count) / max(now - self._time, 1e-9)
        self._count, self._time = count, now
        return rate

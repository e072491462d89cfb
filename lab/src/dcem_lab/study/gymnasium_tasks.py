"""Tables of Gymnasium tasks: the return that `preset=gym` reached on each, and the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dcem_lab.report.documents import Rows
from dcem_lab.report.sources import Sources, read_json
from dcem_lab.suite.numbers import Training, read_evaluations, read_trainings

_CONTROLLERS = {"planet": "full-cem", "agent": "full-cem-value"}
_KNOWN = {"MountainCarContinuous-v0": "90 counts as solved", "InvertedPendulum-v5": "1,000 is the maximum"}


def rows(sources: Sources) -> Rows:
    """A row per training, in the order of the tasks' names."""
    folder = sources.results / "gymnasium"
    evaluated = {(e.task, e.controller): e.totals for e in read_evaluations(sources.results, "gymnasium")}
    found = []
    for experiment, training in _trainings(folder):
        record = _record(folder, experiment, training)
        totals = evaluated.get((training.task, _CONTROLLERS[experiment]))
        curve = training.curves[0]
        first, *_, last = np.flatnonzero(np.isfinite(curve["eval_mean"]))
        begun = curve["eval_mean"][first]
        mean = curve["eval_mean"][last] if totals is None else totals.mean()
        episodes = record["config"]["loop"]["eval_episodes"] if totals is None else len(totals)
        exact = evaluated.get((training.task, "exact-model"))
        known = _KNOWN.get(training.task, "") if exact is None else f"{exact.mean():.1f} with the exact model"
        found.append(
            {
                "task": training.task,
                "trained with": f"`{experiment}`",
                "steps": _steps(curve["env_steps"][last], record["config"]["loop"]["env_steps"]),
                "minutes": f"{curve['seconds'][last] / 60:.0f}",
                "first evaluation": f"{_return(begun)} after {curve['env_steps'][first]:,.0f}",
                "after training": f"{_return(mean)} ({episodes} episodes)",
                "for comparison": known,
            }
        )
    return found


def commands(sources: Sources) -> Rows:
    """The command of every training."""
    folder = sources.results / "gymnasium"
    return [
        {"task": one.task, "command": f"`{_command(_record(folder, experiment, one)['command'])}`"}
        for experiment, one in _trainings(folder)
    ]


def _trainings(folder: Path) -> list[tuple[str, Training]]:
    found = [(name, one) for name in _CONTROLLERS for one in read_trainings(folder / name)]
    return sorted(found, key=lambda pair: pair[1].task)


def _record(folder: Path, experiment: str, training: Training) -> dict[str, Any]:
    return read_json(folder / experiment / training.name / "seed0" / "run.json")


def _steps(done: float, planned: int) -> str:
    """
    >>> _steps(8000.0, 8000), _steps(12000.0, 24000)
    ('8,000', '12,000 of 24,000')
    """
    return f"{done:,.0f}" if done >= planned else f"{done:,.0f} of {planned:,}"


def _return(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 200 else f"{value:,.0f}"


def _command(line: str) -> str:
    """Without the options that change nothing about the result.

    >>> _command("dcem train planet preset=gym loop.env_steps=8000 run_dir=runs/a tensorboard=false")
    'dcem train planet preset=gym env_steps=8000'
    """
    kept = [word for word in line.split() if not word.startswith(("run_dir=", "tensorboard="))]
    return " ".join(word.removeprefix("loop.").removeprefix("collecting.") for word in kept)

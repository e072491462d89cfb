"""Tables of Gymnasium tasks: the return that `preset=gym` reached on each, and the commands."""

from __future__ import annotations

from typing import Any

from dcem_lab.report.documents import Rows
from dcem_lab.report.formats import public_command
from dcem_lab.report.sources import Sources
from dcem_lab.suite.numbers import Training, evaluated, read_evaluations, read_trainings

_CONTROLLERS = {"planet": "full-cem", "agent": "full-cem-value"}
_KNOWN = {"MountainCarContinuous-v0": "90 counts as solved", "InvertedPendulum-v5": "1,000 is the maximum"}


def rows(sources: Sources) -> Rows:
    """A row per training that has been evaluated, by its first seed, in the order of the tasks' names."""
    played = {(e.task, e.controller): e.totals for e in read_evaluations(sources.results, "gymnasium")}
    for experiment, training, record in _trainings(sources):
        curve = training.curves[0]
        steps, means = evaluated(curve, "eval_mean")
        if not len(steps):
            continue
        totals = played.get((training.task, _CONTROLLERS[experiment]))
        mean = means[-1] if totals is None else totals.mean()
        episodes = record["config"]["loop"]["eval_episodes"] if totals is None else len(totals)
        exact = played.get((training.task, "exact-model"))
        known = _KNOWN.get(training.task, "") if exact is None else f"{exact.mean():.1f} with the exact model"
        yield {
            "task": training.task,
            "trained with": f"`{experiment}`",
            "steps": _steps(steps[-1], record["config"]["loop"]["env_steps"]),
            "minutes": f"{curve['seconds'][curve['env_steps'] == steps[-1]][-1] / 60:.0f}",
            "first evaluation": f"{_return(means[0])} after {steps[0]:,.0f}",
            "after training": f"{_return(mean)} ({episodes} episodes)",
            "for comparison": known,
        }


def commands(sources: Sources) -> Rows:
    """The command of every training."""
    return [
        {"task": training.task, "command": f"`{_command(record['command'])}`"}
        for _, training, record in _trainings(sources)
    ]


def _trainings(sources: Sources) -> list[tuple[str, Training, dict[str, Any]]]:
    """The experiment, the training and the record of its first seed."""
    folder = sources.results / "gymnasium"
    found = [(name, one) for name in _CONTROLLERS for one in read_trainings(folder / name)]
    ordered = sorted(found, key=lambda pair: pair[1].task)
    return [(name, one, next(iter(one.records.values()))) for name, one in ordered]


def _steps(done: float, planned: int) -> str:
    """
    >>> _steps(8000.0, 8000), _steps(12000.0, 24000)
    ('8,000', '12,000 of 24,000')
    """
    return f"{done:,.0f}" if done >= planned else f"{done:,.0f} of {planned:,}"


def _return(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 200 else f"{value:,.0f}"


def _command(line: str) -> str:
    """As short as it can be typed.

    >>> _command("dcem train planet preset=gym loop.env_steps=8000 run_dir=runs/a tensorboard=false")
    'dcem train planet preset=gym env_steps=8000'
    """
    words = public_command(line).split()
    return " ".join(word.removeprefix("loop.").removeprefix("collecting.") for word in words)

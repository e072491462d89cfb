"""The table of Gymnasium tasks: what `preset=gym` reached on each, and the command that did it."""

from __future__ import annotations

from dcem_lab.report.documents import Rows
from dcem_lab.report.formats import public_command
from dcem_lab.report.sources import Sources
from dcem_lab.suite.numbers import evaluated, read_evaluations, read_trainings

_CONTROLLERS = {"planet": "full-cem", "agent": "full-cem-value"}
_KNOWN = {"MountainCarContinuous-v0": "90 counts as solved", "InvertedPendulum-v5": "1,000 is the maximum"}


def rows(sources: Sources) -> Rows:
    """A row per training that has been evaluated, by its first seed, in the order of the tasks' names."""
    folder = sources.results / "gymnasium"
    played = {(e.task, e.controller): e.totals for e in read_evaluations(sources.results, "gymnasium")}
    trainings = [(name, one) for name in _CONTROLLERS for one in read_trainings(folder / name)]
    found = []
    for experiment, training in sorted(trainings, key=lambda pair: pair[1].task):
        record, curve = next(iter(training.records.values())), training.curves[0]
        steps, means = evaluated(curve, "eval_mean")
        if not len(steps):
            continue
        totals = played.get((training.task, _CONTROLLERS[experiment]))
        mean = means[-1] if totals is None else totals.mean()
        episodes = record["config"]["loop"]["eval_episodes"] if totals is None else len(totals)
        exact = played.get((training.task, "exact-model"))
        known = _KNOWN.get(training.task, "") if exact is None else f"{exact.mean():.1f} with the exact model"
        found.append(
            {
                "task": training.task,
                "environment steps": f"{steps[-1]:,.0f}",
                "minutes": f"{curve['seconds'][curve['env_steps'] == steps[-1]][-1] / 60:.0f}",
                "first evaluation": f"{_return(means[0])} at {steps[0]:,.0f} steps",
                "mean return after training": f"{_return(mean)} ({episodes} episodes)",
                "for comparison": known,
                "command": f"`{_command(record['command'])}`",
            }
        )
    return found


def _return(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 200 else f"{value:,.0f}"


def _command(line: str) -> str:
    """As short as it can be typed.

    >>> _command("dcem train planet preset=gym loop.env_steps=8000 run_dir=runs/a tensorboard=false")
    'dcem train planet preset=gym env_steps=8000'
    """
    words = public_command(line).split()
    return " ".join(word.removeprefix("loop.").removeprefix("collecting.") for word in words)

"""The numbers of agents with a learned value, for the report and the docs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dcem_lab.report.statistics import failed, two_humps
from dcem_lab.suite.beside import ranked, read_peers, returns_of
from dcem_lab.suite.numbers import DEFAULT, Evaluation, Training, read_trainings, seed_of

Rows = list[dict[str, str]]


def episode_rows(evaluations: Sequence[Evaluation]) -> Rows:
    """Every run, with the returns of its episodes."""
    return [
        {
            "task": one.task,
            "controller": one.label,
            "seed": seed_of(run),
            "episodes": str(len(totals)),
            "mean": f"{totals.mean():.0f}",
            "median": f"{np.median(totals):.0f}",
            "lowest": f"{totals.min():.0f}",
            "failed": str(failed(totals).sum()),
            "bimodal": str(two_humps(totals) or "no"),
            "trajectories per plan": one.sampled,
        }
        for one in evaluations
        for run, totals in one.runs.items()
    ]


def task_rows(results: Path) -> Rows:
    """Every task at our largest number of steps: our mean and seeds, then the means of published agents."""
    peers = read_peers(results)
    rows = []
    for training in main_trainings(results):
        returns = returns_of(training.curves)
        if not returns:
            continue
        at = max(returns)
        known = ranked(training.task, at, peers)
        rows.append(
            {
                "task": training.task,
                "environment steps": f"{at:,}",
                "ours, mean of seeds": f"{returns[at].mean():.0f}",
                "by seed": ", ".join(f"{one:.0f}" for one in returns[at]),
                **{agent: f"{known[agent]:.0f}" if agent in known else "–" for agent in peers},
            }
        )
    return rows


def main_trainings(results: Path) -> list[Training]:
    """One per task, without runs that answer a question or continue others."""
    found = read_trainings(results / "agent")
    return [one for one in found if one.preset == DEFAULT and not (one.aside or one.goes_on)]

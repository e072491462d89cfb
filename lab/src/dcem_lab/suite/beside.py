"""Our agents compared with published ones at the same environment steps: per task, and over all tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from dcem_lab.report.sources import read_json, rows_if_any
from dcem_lab.report.statistics import interquartile_mean, optimality_gap, stratified
from dcem_lab.suite.numbers import DEFAULT, Training, evaluated, main_trainings, seed_of

STEPS = (*range(100_000, 600_001, 100_000), 1_000_000)
OURS = "ours"
NEAR = 0.05  # relative tolerance in steps when matching evaluations
MOST = 1000  # the maximum return of an episode in the control suite
_RESAMPLES = 2000

Returns = Mapping[int, np.ndarray]
"""The mean return of every seed that came so far, by environment steps."""

Peers = Mapping[str, Mapping[str, Returns]]
"""By agent and task."""

Measure = Callable[[np.ndarray], np.ndarray]
Curve = dict[str, np.ndarray]
Rows = list[dict[str, str]]


def read_peers(results: Path) -> Peers:
    """Published returns, by agent and task; where only means were published, one number for all seeds."""
    found: dict[str, dict[str, dict[int, np.ndarray]]] = {}
    for row in rows_if_any(results / "agent" / "peers.csv"):
        returns = np.array(row["returns"].split(), float)
        found.setdefault(row["agent"], {}).setdefault(row["task"], {})[int(row["env_steps"])] = returns
    return found


def peer_sources(results: Path) -> Rows:
    """Where the published returns were published."""
    path = results / "agent" / "peers.json"
    return [{"agent": agent} | about for agent, about in read_json(path).items()] if path.exists() else []


def returns_of(curves: Sequence[Curve], steps: Sequence[int] = STEPS) -> Returns:
    """The evaluations of the seeds at these steps."""
    found = {at: [y for curve in curves for y in _near(curve, at)] for at in steps}
    return {at: np.array(returns) for at, returns in found.items() if returns}


def _near(curve: Curve, steps: int) -> Iterator[float]:
    """The evaluation at this number of steps, if there is one."""
    x, y = evaluated(curve, "eval_mean")
    distance = np.abs(x - steps)
    if (distance <= NEAR * steps).any():
        yield float(y[distance.argmin()])


def beside_rows(
    trainings: Sequence[Training], peers: Peers, steps: Sequence[int] = STEPS, seed_by_seed: bool = False
) -> Rows:
    """The trainings of one task, then every published agent that has it."""
    rows = []
    for training in trainings:
        if seed_by_seed and len(training.curves) > 1:
            for seed, curve in zip(training.records, training.curves, strict=True):
                named = {"agent": f"{training.label}, seed {seed_of(seed)}", "seeds": ""}
                rows.append(named | at_steps(returns_of([curve], steps), steps))
        named = {"agent": training.label, "seeds": str(len(training.curves))}
        rows.append(named | at_steps(returns_of(training.curves, steps), steps, len(training.curves)))
    for agent, tasks in peers.items():
        if trainings and (found := tasks.get(trainings[0].task)):
            seeds = max(map(len, found.values()))
            named = {"agent": agent, "seeds": str(seeds) if seeds > 1 else "their mean"}
            rows.append(named | at_steps(found, steps, seeds))
    return rows


def at_steps(returns: Returns, steps: Sequence[int], seeds: int = 1) -> dict[str, str]:
    """Means over the seeds that reached these steps, with a note if not all did.

    >>> at_steps({1000: np.array([3.0, 5.0]), 2000: np.array([6.0])}, [1000, 2000, 3000], seeds=2)
    {'1,000': '4', '2,000': '6 (1 of 2 seeds)', '3,000': '–'}
    """
    cells = {}
    for at in steps:
        there = returns.get(at, np.empty(0))
        reached = "" if len(there) == seeds else f" ({len(there)} of {seeds} seeds)"
        cells[f"{at:,}"] = f"{there.mean():.0f}{reached}" if len(there) else "–"
    return cells


def ranked(task: str, at: int, peers: Peers) -> dict[str, float]:
    """The means of published agents on a task after this number of steps, the best first."""
    means = {
        agent: float(tasks[task][at].mean()) for agent, tasks in peers.items() if at in tasks.get(task, {})
    }
    return dict(sorted(means.items(), key=lambda one: -one[1]))


def standings(
    trainings: Iterable[Training], peers: Peers
) -> Iterator[tuple[Training, int, np.ndarray, dict[str, float]]]:
    """Each training with its largest number of steps, and the returns of its seeds and of others there."""
    for training in trainings:
        if returns := returns_of(training.curves):
            at = max(returns)
            yield training, at, returns[at], ranked(training.task, at, peers)


def task_rows(results: Path, preset: str = DEFAULT) -> Iterator[dict[str, str]]:
    """Every task at our largest number of steps: our mean and seeds, then the means of published agents."""
    peers = read_peers(results)
    for training, at, returns, known in standings(main_trainings(results, preset), peers):
        yield {
            "task": training.task,
            "environment steps": f"{at:,}",
            "ours, mean of seeds": f"{returns.mean():.0f}",
            "by seed": ", ".join(f"{one:.0f}" for one in returns),
            **{agent: f"{known[agent]:.0f}" if agent in known else "–" for agent in peers},
        }


def aggregate_rows(trainings: Sequence[Training], peers: Peers) -> dict[str, Rows]:
    """Over all runs of all tasks, at the steps where we have every task: two measures, with 95% intervals.

    The bootstrap resamples runs within their task. A published agent is listed if it has every task.
    """
    ours = {training.task: returns_of(training.curves) for training in trainings}
    if len(ours) < 2:
        return {}
    agents = {OURS: ours, **peers}
    steps = [at for at in STEPS if all(at in returns for returns in ours.values())]
    measures: dict[str, Measure] = {
        "interquartile mean": interquartile_mean,
        "optimality gap": lambda returns: optimality_gap(returns, MOST),
    }
    return {
        name: [
            {"agent": agent}
            | {f"{at:,}": _overall([tasks.get(task, {}).get(at) for task in ours], measure) for at in steps}
            for agent, tasks in agents.items()
        ]
        for name, measure in measures.items()
    }


def _overall(returns: Sequence[np.ndarray | None], measure: Measure) -> str:
    there = [one for one in returns if one is not None]
    if len(there) < len(returns):
        return "–"
    value, low, high = stratified(there, measure, _RESAMPLES)
    return f"{value:.0f}" if low == high else f"{value:.0f} [{low:.0f}–{high:.0f}]"

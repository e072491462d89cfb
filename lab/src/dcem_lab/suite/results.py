"""What is kept of cheetah and walker: training curves, and every evaluation episode in one table."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from dcem_lab.runs import Kept, facts, read_records
from dcem_lab.runs.files import write_bytes, write_csv
from dcem_lab.runs.folder import LOG
from dcem_lab.suite.agents import Episode, PlannerConfig
from dcem_lab.suite.source import read_stored

CONTROLLERS = {"planet": "full-cem", "embed": "latent-dcem", "ppo": "latent-dcem-ppo"}
"""What the controllers of the three phases are called in the table."""

_CURVE = {
    "env_steps": "env_steps",
    "updates": "updates",
    "seconds": "seconds",
    "return": "return",
    "eval/mean": "eval_mean",
    "eval/median": "eval_median",
}
_CURVE_OF = {"embed": {**_CURVE, "decoder/cost": "decoder_cost"}}


class Row(NamedTuple):
    """One episode."""

    task: str
    controller: str
    run: str
    samples: int
    iterations: int
    episode_seed: int
    total: float


def keep(folder: Path, record: dict[str, Any]) -> Iterator[Kept]:
    """Returns while collecting and of the evaluations, as far as the run has come."""
    curve = _CURVE_OF.get(record["experiment"], _CURVE)
    rows = [
        [row.get(figure, "") for figure in curve]
        for row in read_records(folder / LOG)
        if "return" in row or "eval/mean" in row
    ]
    yield Kept(record["experiment"], record["variant"], record["seed"], record, list(curve.values()), rows)


def controller_of(run_or_name: str | Path) -> str:
    """What the controller of a run, or of weights that ship, is called in the table."""
    stored = read_stored(run_or_name)
    if stored.experiment == "ppo" and stored.pieces.get("decoder") is None:
        return "full-cem-ppo"
    return CONTROLLERS[stored.experiment]


def add_episodes(
    table: Path,
    task: str,
    controller: str,
    run: str,
    planner: PlannerConfig,
    snapshot: str | None,
    episodes: Sequence[Episode],
    seconds: float,
) -> None:
    """Write episodes into the table, in place of those of the same task, controller and run.

    How they came about (planner, snapshot, date, seconds, commit, versions, machine) goes to a JSON file
    beside it. `snapshot` is None for weights that ship, which have only one.
    """
    new = [
        Row(task, controller, run, planner.samples, planner.iterations, episode.seed, round(episode.total, 3))
        for episode in episodes
    ]
    kept = [row for row in read_table(table) if tuple(row[:3]) != (task, controller, run)]
    write_csv(table, Row._fields, sorted([*kept, *(list(map(str, row)) for row in new)]))
    path = table.with_suffix(".json")
    records = json.loads(path.read_bytes()) if path.exists() else {}
    records[f"{task} {controller} {run}"] = {
        "planner": dataclasses.asdict(planner),
        "snapshot": snapshot,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "seconds": round(seconds, 1),
        **facts.here(),
    }
    write_bytes(path, json.dumps(dict(sorted(records.items())), indent=1).encode() + b"\n")


def read_table(table: Path) -> list[list[str]]:
    """The rows of the table, none where it is yet to be written; ValueError for a file of something else."""
    if not table.exists():
        return []
    header, *rows = [*csv.reader(table.read_text(encoding="utf-8").splitlines())] or [[]]
    if tuple(header) != Row._fields:
        raise ValueError(f"{table} must have the columns {', '.join(Row._fields)}, got {', '.join(header)}")
    return rows

"""Stored results of cheetah and walker: training curves, and every evaluation episode in one table."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dcem_lab.runs import Kept, facts, read_records
from dcem_lab.runs.files import write_csv, write_json
from dcem_lab.runs.folder import LOG

if TYPE_CHECKING:  # the report reads this module without a simulator
    from dcem_lab.suite.agents import Episode, PlannerConfig
    from dcem_lab.suite.trained import Trained

CONTROLLERS = {"agent": "full-cem", "planet": "full-cem", "embed": "latent-dcem", "ppo": "latent-dcem-ppo"}
"""What controllers are called in the table, by experiment; those with a value have -value behind that."""

_CURVE = {
    **{name: name for name in ("env_steps", "updates", "seconds", "return")},
    "eval/mean": "eval_mean",
    "eval/median": "eval_median",
}
_CURVE_OF = {"agent": {**_CURVE, "value/value": "value"}, "embed": {**_CURVE, "decoder/cost": "decoder_cost"}}


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
    """Returns during collection and in evaluations, up to the current step of the run."""
    curve = _CURVE_OF.get(record["experiment"], _CURVE)
    rows = [
        [row.get(figure, "") for figure in curve]
        for row in read_records(folder / LOG)
        if "return" in row or "eval/mean" in row
    ]
    yield Kept(record["experiment"], record["variant"], record["seed"], record, list(curve.values()), rows)


def controller_of(trained: Trained) -> str:
    """What a controller is called in the table."""
    name = CONTROLLERS[trained.experiment]
    if trained.experiment == "ppo" and trained.decoder is None:
        name = "full-cem-ppo"
    return name if trained.value is None else f"{name}-value"


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
    """Write episodes into the table, replacing those of the same task, controller and run.

    Their metadata (planner, snapshot, date, seconds, commit, versions, machine) goes to a JSON file next to
    it. `snapshot` is None for pretrained weights, which have only one.
    """
    candidates = planner.samples + planner.policy_plans
    rows = [
        Row(task, controller, run, candidates, planner.iterations, episode.seed, round(episode.total, 3))
        for episode in episodes
    ]
    record = {
        "planner": dataclasses.asdict(planner),
        "snapshot": snapshot,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "seconds": round(seconds, 1),
        **facts.here(),
    }
    _put(table, [list(map(str, row)) for row in rows], {f"{task} {controller} {run}": record})


def merge(table: Path, other: Path) -> None:
    """Put another table's rows and records in, in place of those of the same controllers and runs."""
    if not other.exists():
        raise ValueError(f"{other} must be a table to merge, but it is not there")
    _put(table, read_table(other), _read_records(other))


def rename(table: Path, old: str, new: str) -> None:
    """Give a controller of the table, or else a run, another name, which nothing beside it may have yet."""
    rows, records = read_table(table), _read_records(table)
    whose = sorted({tuple(row[:3]) for row in rows})
    column = next((at for at in (1, 2) if any(key[at] == old for key in whose)), None)
    if column is None:
        raise ValueError(f"{table} must have a controller or run {old!r} to rename, but it has none")

    def renamed(key: Sequence[str]) -> tuple[str, ...]:
        return (*key[:column], new, *key[column + 1 :]) if key[column] == old else tuple(key)

    for key in whose:
        if renamed(key) != key and renamed(key) in whose:
            beside = " and ".join(name for at, name in enumerate(key) if at != column)
            raise ValueError(f"{table} must have no {Row._fields[column]} {new!r} yet for {beside}")
    names = {" ".join(key): " ".join(renamed(key)) for key in whose}
    kept = {names.get(name, name): record for name, record in records.items()}
    _write(table, [[*renamed(row[:3]), *row[3:]] for row in rows], kept)


def _put(table: Path, rows: list[list[str]], records: dict[str, Any]) -> None:
    whose = {tuple(row[:3]) for row in rows}
    kept = [row for row in read_table(table) if tuple(row[:3]) not in whose]
    _write(table, [*kept, *rows], {**_read_records(table), **records})


def _write(table: Path, rows: list[list[str]], records: dict[str, Any]) -> None:
    write_csv(table, Row._fields, sorted(rows))
    write_json(table.with_suffix(".json"), dict(sorted(records.items())))


def _read_records(table: Path) -> dict[str, Any]:
    path = table.with_suffix(".json")
    return json.loads(path.read_bytes()) if path.exists() else {}


def read_table(table: Path) -> list[list[str]]:
    """The rows of the table, none where it is yet to be written; ValueError for a file of something else."""
    if not table.exists():
        return []
    header, *rows = [*csv.reader(table.read_text(encoding="utf-8").splitlines())] or [[]]
    if tuple(header) != Row._fields:
        raise ValueError(f"{table} must have the columns {', '.join(Row._fields)}, got {', '.join(header)}")
    return rows

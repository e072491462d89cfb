"""`dcem sweep-status`: a table of the runs below a folder, how far they are and the best they have logged."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dcem_lab.commands.exits import DONE, UsageError
from dcem_lab.commands.parser import Parser
from dcem_lab.report.formats import duration
from dcem_lab.runs import RunError, read_record, read_records
from dcem_lab.runs.files import read_small, write_json
from dcem_lab.runs.folder import LOG
from dcem_lab.runs.record import RECORD
from dcem_lab.terminal import printable

PLANNED = Path(".sweep", "runs.json")

_EXAMPLES = """\
  dcem sweep-status runs/cartpole                    every run of the experiment
  dcem sweep-status runs/planet --metric eval/mean   show this metric
  watch -n 30 dcem sweep-status runs/planet          refresh every 30 seconds
"""


def main(arguments: Sequence[str]) -> int:
    """Run `dcem sweep-status` with these arguments; returns the exit code, raises UsageError."""
    given = _parser().parse_args(arguments)
    if not given.folder.is_dir():
        raise UsageError(f"DIR must be a folder with runs, got {given.folder}")
    rows = [status(given.folder, name, given.metric) for name in runs_below(given.folder)]
    if not rows:
        raise UsageError(f"there is no run below {given.folder}")
    print(table(rows))
    return DONE


@dataclasses.dataclass(frozen=True)
class Status:
    """What is known about one run. The metrics are the newest, the lowest and the highest logged."""

    run: str
    status: str
    step: int = 0
    steps: int | None = None
    seconds_left: float | None = None
    seconds_ago: float | None = None
    metric: str = ""
    values: tuple[float, float, float] | None = None
    error: str = ""


def note_planned(root: Path, folders: Iterable[Path]) -> None:
    """Remember which runs a sweep is going to have, beside those of sweeps before it."""
    names = {str(folder.relative_to(root)) for folder in folders}
    path = root / PLANNED
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, sorted(names | set(_planned(root))))


def runs_below(root: Path) -> list[str]:
    """Folders with a record, and those that a sweep has planned; relative to `root`."""
    begun = {str(path.parent.relative_to(root)) for path in root.glob(f"**/{RECORD}")}
    return sorted(begun | set(_planned(root)))


def status(root: Path, run: str, metric: str | None = None) -> Status:
    """What the files of a run say, without disturbing it.

    Unless named, the metric is the first of the newest record that is not a count.
    """
    try:
        return _status(root, run, metric)
    except (RunError, OSError, ValueError) as error:
        return Status(run, "damaged", error=str(error))


def _status(root: Path, run: str, metric: str | None) -> Status:
    folder = root / run
    if not (folder / RECORD).exists():
        return Status(run, "not started")
    record, log = read_record(folder), read_records(folder / LOG)
    running = record["status"] == "running"
    step, steps = record["step"], record["steps"]
    newest = log[-1] if log else {}
    if running:  # the record is as old as the last checkpoint
        step = max(step, _whole(newest.get("step", 0)))
    seconds = max(record["wall_seconds"], newest.get("seconds", 0.0))
    touched = max(path.stat().st_mtime for path in (folder / RECORD, folder / LOG) if path.exists())
    name = metric or _first_metric(newest)
    return Status(
        run=run,
        status=record["status"],
        step=step,
        steps=steps,
        seconds_left=seconds * (steps - step) / step if running and step and steps else None,
        seconds_ago=max(0.0, time.time() - touched) if running else None,
        metric=name,
        values=_newest_and_extremes(log, name),
        error=record["error"] or "",
    )


def table(rows: Sequence[Status]) -> str:
    """All of it as text: a line per run, what failed and why, and the count of each status.

    Text from files is escaped, so that it cannot control the terminal.
    """
    heads = ["run", "status", "progress", "left", "seen", "metric", "newest", "lowest", "highest"]
    lines = [heads, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines]
    errors = [printable(f"{row.run}: {row.error}") for row in rows if row.error]
    counts = ", ".join(f"{count} {name}" for name, count in Counter(row.status for row in rows).items())
    parts = ["\n".join(map(str.rstrip, text)), "\n".join(errors), f"{len(rows)} runs: {counts}"]
    return "\n\n".join(filter(None, parts))


def _cells(row: Status) -> list[str]:
    progress = f"{row.step}/{row.steps} {row.step / row.steps:4.0%}" if row.steps else ""
    seen = "" if row.seconds_ago is None else f"{duration(row.seconds_ago)} ago"
    left = "" if row.seconds_left is None else duration(row.seconds_left)
    metrics = [f"{value:.4g}" for value in row.values] if row.values else ["", "", ""]
    return [printable(row.run), row.status, progress, left, seen, printable(row.metric), *metrics]


def _whole(step: float) -> int:
    return int(step) if math.isfinite(step) else 0


def _first_metric(newest: dict[str, float]) -> str:
    names = [name for name in newest if name not in ("step", "seconds")]
    return next((name for name in names if isinstance(newest[name], float)), names[0] if names else "")


def _newest_and_extremes(log: list[dict[str, float]], name: str) -> tuple[float, float, float] | None:
    values = [row[name] for row in log if name in row]
    finite = [value for value in values if math.isfinite(value)]
    if not values:
        return None
    return values[-1], min(finite, default=math.nan), max(finite, default=math.nan)


def _planned(root: Path) -> list[str]:
    path = root / PLANNED
    try:
        names: Any = json.loads(read_small(path.parent, path.name))
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(names, list):
        return []
    inside = root.resolve()
    return [name for name in names if isinstance(name, str) and _is_below(inside, name)]


def _is_below(root: Path, name: str) -> bool:
    try:
        return (root / name).resolve().is_relative_to(root)
    except (OSError, ValueError):  # no file can have this name
        return False


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "sweep-status",
        "Show the status of all runs below a folder: running, finished, failed or not started.",
        _EXAMPLES,
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="runs/EXPERIMENT, or the run_dir of a sweep")
    parser.add_argument("--metric", metavar="NAME", help="the logged metric to show (default: the first)")
    return parser

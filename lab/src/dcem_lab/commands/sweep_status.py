"""`dcem sweep-status`: a table of the runs below a folder, how far they are and the best they have logged."""

from __future__ import annotations

import argparse
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
HEADS = ["run", "status", "progress", "left", "seen", "metric", "newest", "lowest", "highest"]

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


def status(root: Path, run: str, metric: str | None = None) -> dict[str, str]:
    """What the files of a run say, without disturbing it: cells by their `HEADS`, and any error.

    Unless named, the metric is the first of the newest record that is not a count.
    """
    folder = root / run
    try:
        if not (folder / RECORD).exists():
            return {"run": run, "status": "not started"}
        record, log = read_record(folder), read_records(folder / LOG)
        touched = max(path.stat().st_mtime for path in (folder / RECORD, folder / LOG) if path.exists())
    except (RunError, OSError, ValueError) as error:
        return {"run": run, "status": "damaged", "error": str(error)}
    newest = log[-1] if log else {}
    step, steps, logged = record["step"], record["steps"], newest.get("step", 0)
    row = {"run": run, "status": record["status"], "error": record["error"] or ""}
    if record["status"] == "running":
        if math.isfinite(logged):  # the record is as old as the last checkpoint
            step = max(step, int(logged))
        seconds = max(record["wall_seconds"], newest.get("seconds", 0.0))
        if step and steps and math.isfinite(seconds):
            row["left"] = duration(seconds * (steps - step) / step)
        row["seen"] = f"{duration(max(0.0, time.time() - touched))} ago"
    if steps:
        row["progress"] = f"{step}/{steps} {step / steps:4.0%}"
    return row | _metrics(log, metric or _first_metric(newest))


def table(rows: Sequence[dict[str, str]]) -> str:
    """All of it as text: a line per run, what failed and why, and the count of each status.

    Text from files is escaped, so that it cannot control the terminal.
    """
    lines = [HEADS, *([printable(row.get(head, "")) for head in HEADS] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines]
    errors = [printable(f"{row['run']}: {row['error']}") for row in rows if row.get("error")]
    counts = ", ".join(f"{count} {name}" for name, count in Counter(row["status"] for row in rows).items())
    parts = ["\n".join(map(str.rstrip, text)), "\n".join(errors), f"{len(rows)} runs: {counts}"]
    return "\n\n".join(filter(None, parts))


def _first_metric(newest: dict[str, float]) -> str:
    names = [name for name in newest if name not in ("step", "seconds")]
    return next((name for name in names if isinstance(newest[name], float)), names[0] if names else "")


def _metrics(log: list[dict[str, float]], name: str) -> dict[str, str]:
    values = [row[name] for row in log if name in row]
    if not values:
        return {"metric": name}
    finite = [value for value in values if math.isfinite(value)]
    shown = values[-1], min(finite, default=math.nan), max(finite, default=math.nan)
    return {"metric": name} | {head: f"{x:.4g}" for head, x in zip(HEADS[-3:], shown, strict=True)}


def _planned(root: Path) -> list[str]:
    path = root / PLANNED
    try:
        names: Any = json.loads(read_small(path.parent, path.name))
    except (OSError, ValueError, RecursionError):
        return []
    inside, names = root.resolve(), names if isinstance(names, list) else []
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

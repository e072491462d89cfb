"""From a run folder to what is kept: results/<experiment>/<variant>/seed<k>/{run.json, curve.csv, …}."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dcem_lab.runs.files import write_bytes, write_csv
from dcem_lab.runs.folder import LOG
from dcem_lab.runs.log import read_records
from dcem_lab.runs.record import RunError, read_record, write_record

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+-]*")


class Kept(NamedTuple):
    """What is kept of one seed of a run: its record, its curve, and other tables by their file names."""

    experiment: str
    variant: str
    seed: int
    record: dict[str, Any]
    columns: Sequence[str]
    rows: Iterable[Iterable[object]]
    tables: Mapping[str, bytes] = {}


Keep = Callable[[Path, dict[str, Any]], Iterable[Kept]]
"""(run folder, its record) -> what is kept of it, seed by seed."""


def whole_log(folder: Path, record: dict[str, Any]) -> Iterable[Kept]:
    """Every metric of the log, in the order in which they were first logged; numbers are written exactly."""
    log = read_records(folder / LOG)
    columns = list(dict.fromkeys(name for row in log for name in row))
    rows = [[row.get(name, "") for name in columns] for row in log]
    yield Kept(record["experiment"], record["variant"], record["seed"], record, columns, rows)


def export_run(
    run_folder: Path | str,
    results: Path | str = "lab/results",
    name: str | None = None,
    keep: Keep = whole_log,
) -> list[Path]:
    """Keep a run, as far as it has come; returns a folder per seed.

    `name` takes the place of the variant's; where a run has several variants, theirs begin with it. Nothing
    is written outside of `results`, whatever the run's record says.
    """
    record = read_record(run_folder)
    try:
        found = list(keep(Path(run_folder), record))
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        kind = record.get("experiment")
        raise RunError(f"{run_folder} must be a run of {kind}, as its record says, got {error!r}") from error
    several = any(one.variant != found[0].variant for one in found)
    folders = []
    for one in found:
        variant = one.variant if name is None else f"{name}-{one.variant}" if several else name
        folders.append(_seed_folder(Path(results), one.experiment, variant, one.seed))
    for folder, one in zip(folders, found, strict=True):
        write_csv(folder / "curve.csv", one.columns, one.rows)
        for table, content in one.tables.items():
            write_bytes(folder / table, content)
        write_record(folder, one.record)
    return folders


def _seed_folder(results: Path, experiment: object, variant: object, seed: object) -> Path:
    for what, given in (("experiment", experiment), ("variant", variant)):
        if not (isinstance(given, str) and _NAME.fullmatch(given)):
            raise ValueError(f"{what} must be letters, digits and any of ._=,+- and no path, got {given!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a whole number, at least 0, got {seed!r}")
    folder = results / str(experiment) / str(variant) / f"seed{seed}"
    if not folder.resolve().is_relative_to(results.resolve()):
        raise ValueError(f"{folder} must lie in {results}, but a link leads out of it")
    return folder

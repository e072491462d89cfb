"""Rows of measurements that say where they come from, in a CSV that several machines write into."""

import argparse
import csv
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dcem_lab.runs import facts
from dcem_lab.runs.files import write_csv


def options(about: str | None, required: bool = True) -> argparse.ArgumentParser:
    """A parser with the script's docstring as its help, and where the rows go."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=required, help="a CSV to put the rows into")
    return parser


def origin(device: torch.device) -> dict[str, Any]:
    """Device, date, commit and torch's version: columns for every row that is measured now."""
    return {
        "device": facts.machine()["gpu" if device.type == "cuda" else "cpu"],
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "commit": str(facts.commit()["commit"] or "")[:7],
        "torch": torch.__version__,
    }


def put(path: Path, rows: Sequence[dict[str, Any]], same: Sequence[str]) -> None:
    """Write rows into a table, in place of those that are equal to one of them in the columns `same`."""
    known = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []
    renewed = {tuple(str(row[name]) for name in same) for row in rows}
    kept = [row for row in known if tuple(row.get(name, "") for name in same) not in renewed]
    columns = list(rows[0])
    write_csv(path, columns, ([row.get(name, "") for name in columns] for row in [*kept, *rows]))

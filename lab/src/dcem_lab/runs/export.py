"""From a run folder to what is kept: results/<experiment>/<variant>/seed<k>.csv and run.json."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from dcem_lab.runs.files import write_bytes
from dcem_lab.runs.folder import LOG
from dcem_lab.runs.log import read_records
from dcem_lab.runs.record import RunError, read_record


def export_csv(run_folder: Path | str, results: Path | str = "lab/results") -> Path:
    """Write a finished run's log as CSV and add its record to the variant's run.json; returns the CSV's path.

    run.json maps `seed<k>` to the record of that run. Columns are in the order in which they were first
    logged, after `step`; a record without a figure leaves its cell empty. Numbers are written exactly.
    """
    record = read_record(run_folder)
    if record["status"] != "finished":
        raise RunError(f"{run_folder} is {record['status']}; only a finished run can be exported")
    folder = Path(results) / record["experiment"] / record["variant"]
    folder.mkdir(parents=True, exist_ok=True)
    rows = read_records(Path(run_folder) / LOG)
    seed = f"seed{record['seed']}"
    write_bytes(folder / f"{seed}.csv", _csv(rows).encode())
    records = folder / "run.json"
    merged = json.loads(records.read_bytes()) if records.exists() else {}
    merged = dict(sorted({**merged, seed: record}.items()))
    write_bytes(records, json.dumps(merged, indent=1).encode() + b"\n")
    return folder / f"{seed}.csv"


def _csv(rows: list[dict[str, float]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()

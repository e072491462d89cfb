"""The cartpole's latent action space trained with each soft top-k operator, at one effective sample size.

A run renews its own rows of the table.
"""

import argparse
import csv
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from machine import machine  # noqa: E402
from training import DETACHED, Settings  # noqa: E402
from workers import Worker, WorkerError  # noqa: E402

# How the tables call an operator: its name, and the environment it lives in.
OPERATORS = {
    "dcem.lml": ("lml", "ours"),
    "SOFT top-k, 200 iterations": ("SOFT", "ours"),
    "LapSum": ("LapSum", "ours"),
    "Euclidean projection": ("Euclidean", "ours"),
    "difftopk, bitonic network": ("network", "difftopk"),
    "difftopk, SoftSort": ("SoftSort", "difftopk"),
    "no gradient through the search": (DETACHED, "ours"),
}
COLUMNS = (
    "operator", "seed", "temperature", "cost before", "cost", "cost on fresh states",
    "updates without a finite gradient", "CPU ms per update", "wall seconds", "failure",
)  # fmt: skip
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--operators", nargs="+", choices=OPERATORS, default=list(OPERATORS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=Settings.updates)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    args = parser.parse_args()
    settings = Settings(updates=args.updates)
    for label in args.operators:
        name, environment = OPERATORS[label]
        facts = machine(threads=1) | {"settings": asdict(settings)}
        with Worker(environment, threads=1, module="training", folder=HERE) as worker:
            facts["versions"] = worker.ask("versions")
            rows = [trained(worker, label, name, settings, seed) for seed in range(args.seeds)]
        put(args.out, rows)
        note(args.out, label, facts | {"wall seconds": round(sum(row["wall seconds"] for row in rows))})


def trained(worker: Worker, label: str, name: str, settings: Settings, seed: int) -> Row:
    start = time.perf_counter()
    try:
        found = worker.ask("train", name=name, settings=asdict(settings), seed=seed)
    except WorkerError as error:
        found = {"failure": str(error)}
    row = {"operator": label, "seed": seed} | found | {"wall seconds": time.perf_counter() - start}
    print(row, flush=True)
    return row


def put(folder: Path, rows: list[Row]) -> None:
    """Write rows into the table, in place of those of the same operator."""
    path = folder / "embedding.csv"
    known = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []
    renewed = {row["operator"] for row in rows}
    table = [row for row in known if row["operator"] not in renewed] + rows
    table.sort(key=lambda row: list(OPERATORS).index(row["operator"]))
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for row in table:
            writer.writerow({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()})


def note(folder: Path, operator: str, facts: Row) -> None:
    """Where, when and with which settings an operator was trained."""
    path = folder / "run.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | {operator: facts}, indent=2) + "\n")


if __name__ == "__main__":
    main()

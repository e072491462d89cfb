"""Rows of contenders, and what is made of them: the tables and the pictures."""

import csv
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]

COLUMNS = (
    "problem", "contender", "cosine", "cosine, lowest tenth", "relative error",
    "relative error, highest tenth", "excess", "found", "ms, B=1", "ratio, B=1", "ms, B=64", "ratio, B=64",
    "MB", "failures", "instances", "errors",
)  # fmt: skip
SHOWN = ("cosine", "relative error", "excess", "found", "ms, B=1", "ms, B=64", "MB", "failures")


def put(folder: Path, rows: Iterable[Row]) -> None:
    """Write rows into the table, in place of those of the same problem and contender."""
    table = {(row["problem"], row["contender"]): row for row in [*read(folder), *rows]}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "layers.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for row in table.values():
            writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})


def read(folder: Path) -> list[Row]:
    path = folder / "layers.csv"
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def note(folder: Path, problem: str, facts: dict[str, Any]) -> None:
    """Where and when a problem was measured."""
    record = folder / "run.json"
    known = json.loads(record.read_text()) if record.exists() else {}
    record.write_text(json.dumps(known | {problem: facts}, indent=2) + "\n")


def publish(folder: Path) -> None:
    """The tables of all rows there are, and a picture of every problem where matplotlib is."""
    by_problem: dict[str, list[Row]] = {}
    for row in read(folder):
        by_problem.setdefault(row["problem"], []).append(row)
    pages = [table(name, rows) for name, rows in by_problem.items()]
    (folder / "tables.md").write_text("# Argmin layers\n\n" + "\n".join(pages))
    try:
        for name, rows in by_problem.items():
            draw(name, rows, folder)
    except ImportError:
        print("no pictures: matplotlib is not installed", flush=True)
    print((folder / "tables.md").read_text())


def table(name: str, rows: list[Row]) -> str:
    lines = [f"## {name}", "", _line(["contender", *SHOWN]), _line(["---"] * (1 + len(SHOWN)))]
    for row in rows:
        failures = f"{row['failures']} of {row['instances']}" if row["failures"] else row["errors"]
        cells = [cell(row[key]) for key in SHOWN[:-1]]
        lines.append(_line([row["contender"], *cells, failures]))
    return "\n".join([*lines, ""])


def cell(text: str) -> str:
    """Three significant digits; scientific only where it is shorter to read."""
    if not text:
        return ""
    value = float(text)
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        digits = 0 if abs(value) >= 100 else 2 - math.floor(math.log10(abs(value) or 1))
        return f"{value:.{max(digits, 0)}f}"
    return f"{value:.0e}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def draw(name: str, rows: list[Row], folder: Path) -> None:
    """The error of the gradient against the time of a batch: down and to the left is better."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "dcem"  # the same numbers make the same file
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for row in rows:
        if row["relative error"] and row["ms, B=64"]:
            error = max(float(row["relative error"]), 1e-16)
            ours = row["contender"].lower().startswith("dcem")
            (dot,) = axis.plot(float(row["ms, B=64"]), error, "o" if ours else "s", markersize=9)
            label = f"{row['contender']} ({float(row['found']):.0%})"
            axis.annotate(label, dot.get_xydata()[0], xytext=(6, 4), textcoords="offset points", fontsize=8)
    axis.set(xscale="log", yscale="log", xlabel="CPU milliseconds, forward and backward, 64 problems")
    axis.set(ylabel="median relative error of the gradient", title=f"{name} (share of argmins found)")
    axis.margins(x=0.2, y=0.1)
    axis.grid(alpha=0.3)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)

"""Outcomes as lab/results/reliability/*.csv, and these as the table of lab/docs/reliability.md.

PYTHONPATH=lab/tests python -m reliability.publish rebuilds the table.
"""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from pathlib import Path

from dcem_lab.runs.facts import machine, versions
from dcem_lab.runs.files import write_bytes
from reliability.catalogue import CATALOGUE, Measurement
from reliability.outcome import Outcome

ROOT = Path(__file__).parents[3]
RESULTS, PAGE = ROOT / "lab" / "results" / "reliability", ROOT / "lab" / "docs" / "reliability.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def write_csv(name: str, outcome: Outcome) -> Path:
    """One row: what was tried, how often, what failed, and where."""
    where, found = machine(), versions()
    row = {
        "what": CATALOGUE[name].what,
        "target": CATALOGUE[name].target,
        "count": outcome.count,
        "failures": len(outcome.failures),
        "worst_seconds": "" if outcome.worst_seconds is None else f"{outcome.worst_seconds:.3g}",
        "notes": outcome.notes,
        "first_failures": "; ".join(outcome.failures[:3]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": ", ".join(
            str(x) for x in (where["cpu"], f"{where['cores']} cores", where["gpu"], where["system"]) if x
        ),
        "versions": ", ".join(f"{package} {version}" for package, version in found.items()),
    }
    text = io.StringIO()
    writer = csv.DictWriter(text, list(row), lineterminator="\n")
    writer.writeheader()
    writer.writerow(row)
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_bytes(RESULTS / f"{name}.csv", text.getvalue().encode())
    return RESULTS / f"{name}.csv"


def table() -> str:
    """The table as Markdown, from whatever has been measured."""
    heads = ["what", "target", "tries", "failures", "slowest", "measured by"]
    lines = [f"| {' | '.join(heads)} |", "| --- | --- | --- | --- | --- | --- |"]
    return "\n".join(lines + [_line(name, measurement) for name, measurement in CATALOGUE.items()])


def page() -> str:
    """The page with its table renewed."""
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


def _line(name: str, measurement: Measurement) -> str:
    path, command = RESULTS / f"{name}.csv", f"`make soak ONLY={name}`"
    if not path.exists():
        return f"| {measurement.what} | {measurement.target} | not yet measured | | | {command} |"
    [row] = csv.DictReader(path.read_text("utf-8").splitlines())
    seconds = f"{row['worst_seconds']} s" if row["worst_seconds"] else ""
    tries = f"{int(row['count']):,}" + (f" ({row['notes']})" if row["notes"] else "")
    cells = [measurement.what, measurement.target, tries, row["failures"], seconds, command]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    write_bytes(PAGE, page().encode())

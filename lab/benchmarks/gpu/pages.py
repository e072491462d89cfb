"""Measurements -> CSV and Markdown, each beside its floor.

A floor is the time that the bytes and operations which the work cannot do without would take at the rates
measured on the machine, whichever is longer.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcem_lab.runs.files import write_csv

HEADER = ["case", "what", "ms", "ratio", "MB", "GFLOP", "floor, ms", "ms / floor"]


@dataclass(frozen=True)
class Row:
    """One measurement; None where nobody has measured. Its ratio is to the first row of its case."""

    case: str
    what: str
    ms: float | None
    bytes: float
    flop: float = 0.0
    unit: str = "bf16"  # which of the rates counts for the operations


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    note: str
    rows: list[Row]

    def ms(self, case: str, what: str) -> float:
        return next(r.ms for r in self.rows if (r.case, r.what) == (case, what) and r.ms is not None)

    def figures(self, row: Row, rates: dict[str, float]) -> list[float | None]:
        floor = 1e3 * max(row.bytes / rates["bytes"], row.flop / rates[row.unit])
        first = next(r.ms for r in self.rows if r.case == row.case)
        if row.ms is None or first is None:
            return [None, None, row.bytes / 1e6, row.flop / 1e9, floor, None]
        return [row.ms, row.ms / first, row.bytes / 1e6, row.flop / 1e9, floor, row.ms / floor]


def write(folder: Path, table: Table, rates: dict[str, float]) -> None:
    rows = [[row.case, row.what, *table.figures(row, rates)] for row in table.rows]
    write_csv(folder / f"{table.name}.csv", HEADER, rows, digits=6)


def markdown(table: Table, rates: dict[str, float]) -> str:
    rows = [[row.case, row.what, *table.figures(row, rates)] for row in table.rows]
    return f"## {table.title}\n\n{table.note}\n\n{grid(HEADER, rows)}\n"


def grid(header: list[str], rows: list[list[Any]]) -> str:
    cells = [[v if isinstance(v, str) else number(v) for v in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *cells])


def heading(facts: dict[str, Any]) -> str:
    rates = facts["rates"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    products = ", ".join(f"{rates[unit] / 1e12:.0f} TFLOP/s in {unit}" for unit in ("bf16", "tf32", "fp32"))
    return (
        f"# GPU benchmarks\n\n{facts['date']}, {facts['gpu']}, driver {facts['driver']}, {versions}, "
        f"commit {facts['commit']}.\n"
        f"Measured here: a copy moves {rates['bytes'] / 1e12:.2f} TB/s, matrix products run at {products}, "
        f"and a graph of one tiny kernel takes {1e6 / rates['launches']:.1f} µs.\n"
        "Ratios are to the first row of a case.\n"
    )


def number(value: float | None) -> str:
    """Three digits; nothing where there is nothing."""
    return "" if not value else f"{value:.0f}" if value >= 100 else f"{value:.3g}"

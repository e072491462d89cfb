"""Measurements -> CSV and Markdown."""

import csv
import math
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suite import Table

PASSES = ("forward", "forward+backward")


@dataclass
class Row:
    """Everything measured for one contender on one case."""

    case: str
    contender: str
    ms: dict[str, list[float]] = field(default_factory=dict)  # pass -> one median a round
    figures: dict[str, float | None] = field(default_factory=dict)  # memory and correctness
    failure: str = ""


def summary(row: Row, baseline: Row) -> dict[str, Any]:
    """Medians over the rounds, and quartiles of the round-by-round ratios to the baseline."""
    flat: dict[str, Any] = {"case": row.case, "contender": row.contender}
    for name in PASSES:
        rounds = row.ms.get(name, [])
        flat[f"{name} ms"] = statistics.median(rounds) if rounds else None
        base = baseline.ms.get(name, [])
        ratios = [ours / theirs for ours, theirs in zip(rounds, base, strict=True)] if rounds and base else []
        flat[f"{name} ratio"] = statistics.median(ratios) if ratios else None
        q1, _, q3 = (
            statistics.quantiles(ratios, method="inclusive") if len(ratios) > 1 else (None, None, None)
        )
        flat[f"{name} ratio q1"], flat[f"{name} ratio q3"] = q1, q3
    return flat | row.figures | {"failure": row.failure}


def write(folder: Path, table: Table, rows: list[Row], by_case: dict[str, Row]) -> str:
    """Write `<table>.csv` and `<table>_rounds.csv`; return the table as Markdown."""
    flat = [summary(row, by_case[row.case]) for row in rows]
    keys = list(dict.fromkeys(key for row in flat for key in row))
    _csv(folder / f"{table.name}.csv", keys, ([row.get(key) for key in keys] for row in flat))
    rounds = ([r.case, r.contender, p, i, ms] for r in rows for p in r.ms for i, ms in enumerate(r.ms[p]))
    _csv(folder / f"{table.name}_rounds.csv", ["case", "contender", "pass", "round", "ms"], rounds)
    return _markdown(table, flat)


def publish(path: Path, title: str, pages: dict[str, str]) -> None:
    """Write the pages by name, in place of those of the same name; the others of the file stay."""
    mark = "<!-- table: {} -->\n"
    text = path.read_text() if path.exists() else ""
    kept = dict(re.findall(r"<!-- table: (\w+) -->\n(.*?)(?=<!-- table: |\Z)", text, re.DOTALL))
    pages = kept | {name: page + "\n" for name, page in pages.items()}
    path.write_text(f"{title}\n\n" + "".join(mark.format(name) + page for name, page in pages.items()))


def _csv(path: Path, header: list[str], rows: Iterable[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([f"{v:.6g}" if isinstance(v, float) else v for v in row] for row in rows)


def _markdown(table: Table, rows: list[dict[str, Any]]) -> str:
    passes = [p for p in PASSES if any(row[f"{p} ms"] is not None for row in rows)]
    timing = {f"{p} {unit}" for p in PASSES for unit in ("ms", "ratio", "ratio q1", "ratio q3")}
    figures = [k for k in dict.fromkeys(k for row in rows for k in row) if k not in timing]
    figures = [k for k in figures if k not in ("case", "contender", "failure")]
    header = ["case", "contender", *(c for p in passes for c in (f"{p}, ms", "ratio")), *figures]
    lines = [f"## {table.title}", "", table.note, "", _line(header), _line(["---"] * len(header))]
    for row in rows:
        if row["failure"]:
            lines.append(_line([row["case"], row["contender"], row["failure"], *[""] * (len(header) - 3)]))
            continue
        cells = [row["case"], row["contender"]]
        for name in passes:
            cells += [_number(row[f"{name} ms"]), _ratio(row, name)]
        lines.append(_line([*cells, *(_number(row.get(key)) for key in figures)]))
    return "\n".join([*lines, ""])


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _ratio(row: dict[str, Any], name: str) -> str:
    middle, low, high = (row[f"{name} ratio{q}"] for q in ("", " q1", " q3"))
    if middle is None:
        return ""
    return f"{_number(middle)}" if low is None else f"{_number(middle)} [{_number(low)}–{_number(high)}]"


def _number(value: float | None) -> str:
    """Three significant digits; scientific only where it is shorter to read."""
    if value is None:
        return ""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        digits = 0 if abs(value) >= 100 else 2 - math.floor(math.log10(abs(value) or 1))
        return f"{value:.{max(digits, 0)}f}"
    return f"{value:.1e}"

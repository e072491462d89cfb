"""The folders that the page is built from, and the parts of a section."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from dcem_lab.report.claims import Claim
from dcem_lab.report.templates import part


@dataclass(frozen=True)
class Sources:
    """The folders that the page is built from.

    results: results of the study; checkout: with benchmarks and docs; quick: a quick run, or None.
    """

    results: Path
    checkout: Path
    quick: Path | None = None

    @property
    def benchmarks(self) -> Path:
        """The library compared with its peers, on a CPU."""
        return self.checkout / "benchmarks" / "results"

    @property
    def gpu_benchmarks(self) -> Path:
        """Kernels, solves, planning and model updates on a CUDA device."""
        return self.checkout / "lab" / "benchmarks" / "gpu" / "results"

    @property
    def docs(self) -> Path:
        """Of the lab."""
        return self.checkout / "lab" / "docs"


@dataclass(frozen=True)
class Section:
    """A part of the page.

    `opening` goes to the top of the page. `body` is collapsed below, with `about` as a hint of its content.
    `claims` go to the verdicts, `failures` to what did not work; `data` is read by scripts.
    """

    id: str
    title: str
    body: Markup
    claims: Sequence[Claim] = ()
    failures: Sequence[str | Markup] = ()
    data: dict[str, Any] = field(default_factory=dict)
    opening: Markup | str = ""
    about: str = ""
    folded: bool = True


def or_not_run(body: Callable[[], Markup], how: str) -> Markup:
    """`body()`, or a note that it has not been run if files are missing."""
    try:
        return body()
    except FileNotFoundError:
        return part("not_run", how)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def seeds_of(variant: Path) -> list[Path]:
    """The folders of a variant's seeds that have a curve, by number."""
    found = [curve.parent for curve in variant.glob("seed*/curve.csv")]
    return sorted(found, key=lambda folder: int(folder.name.removeprefix("seed")))


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """A table of numbers; empty cells are NaN."""
    names, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
    values = np.array([[float(cell or "nan") for cell in row] for row in rows]).reshape(-1, len(names))
    return dict(zip(names, values.T, strict=True))


def read_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def rows_if_any(path: Path) -> list[dict[str, str]]:
    """The rows of a table; none if it does not exist."""
    return read_rows(path) if path.exists() else []


def grouped(rows: Iterable[dict[str, str]], *names: str) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """The rows that agree in these columns, by what they have there.

    >>> grouped([{"a": "1", "b": "2"}, {"a": "1", "b": "3"}], "a")
    {('1',): [{'a': '1', 'b': '2'}, {'a': '1', 'b': '3'}]}
    """
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found

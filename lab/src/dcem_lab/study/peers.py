"""The library beside its peers, as tables of the docs: argmin layers, soft top-k operators, solves."""

from __future__ import annotations

from dcem_lab.report.documents import Rows
from dcem_lab.report.formats import number, scientific
from dcem_lab.report.sources import Sources, read_rows


def layer_rows(sources: Sources, problem: str) -> Rows:
    """Every contender on one problem of `benchmarks/layers`."""
    path = sources.checkout / "benchmarks" / "layers" / "results" / "layers.csv"
    rows = read_rows(path) if path.exists() else []
    return [
        {
            "layer": row["contender"],
            "cosine": _digits(row["cosine"]),
            "error of the gradient": _small(row["relative error"]),
            "excess": _small(row["excess"]),
            "found": f"{float(row['found']):.0%}" if row["found"] else "",
            "ms, B=1": _digits(row["ms, B=1"]),
            "B=64": _digits(row["ms, B=64"]),
            "MB": _digits(row["MB"]),
            "failures": f"{row['failures']} of {row['instances']}",
        }
        for row in rows
        if row["problem"] == problem
    ]


def topk_rows(sources: Sources) -> Rows:
    path = sources.benchmarks / "topk.csv"
    return [
        {
            "operator": row["contender"],
            "error of the sum": _small(row["sum error"]),
            "outside [0, 1]": _small(row["outside [0, 1]"]),
            "error of the gradient": _small(row["gradient error, differences"]),
            "forward+backward, ms": _digits(row["forward+backward ms"]),
            "ratio": _digits(row["forward+backward ratio"]),
        }
        for row in (read_rows(path) if path.exists() else [])
        if row["case"].startswith("64×")
    ]


def solve_rows(sources: Sources) -> Rows:
    """DCEM forward and backward, and a plan by MPPI forward."""
    found = []
    for name, passes in (("dcem", "forward+backward"), ("control", "forward")):
        path = sources.benchmarks / f"{name}.csv"
        found += [
            {
                "case": f"{row['case']}, {passes}",
                "contender": row["contender"],
                "ms": _digits(row[f"{passes} ms"]) or row["failure"],
                "ratio": _digits(row[f"{passes} ratio"]),
            }
            for row in (read_rows(path) if path.exists() else [])
        ]
    return found


def _digits(text: str) -> str:
    return number(float(text)) if text else ""


def _small(text: str) -> str:
    """Scientific where that is shorter."""
    if not text:
        return ""
    value = float(text)
    return number(value) if value == 0 or abs(value) >= 1e-3 else scientific(value)

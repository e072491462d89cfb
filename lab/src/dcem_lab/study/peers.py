"""The library compared with its peers, as tables of the docs: argmin layers, soft top-k operators, solves."""

from __future__ import annotations

from statistics import fmean

from dcem_lab.report.documents import Rows
from dcem_lab.report.formats import if_number, number, scientific
from dcem_lab.report.sources import Sources, grouped, rows_if_any


def layers(sources: Sources, problem: str) -> list[dict[str, str]]:
    """Every contender on one problem of `benchmarks/layers`, with raw measurements."""
    path = sources.checkout / "benchmarks" / "layers" / "results" / "layers.csv"
    return [row for row in rows_if_any(path) if row["problem"] == problem]


def layer_rows(sources: Sources, problem: str) -> Rows:
    """The same, for a page."""
    return [
        {
            "layer": row["contender"],
            "cosine": if_number(row["cosine"]),
            "gradient error": if_number(row["relative error"], _small),
            "excess": if_number(row["excess"], _small),
            "found": if_number(row["found"], "{:.0%}".format),
            "time (ms), B = 1": if_number(row["ms, B=1"]),
            "time (ms), B = 64": if_number(row["ms, B=64"]),
            "memory (MB)": if_number(row["MB"]),
            "failures": f"{row['failures']} of {row['instances']}",
        }
        for row in layers(sources, problem)
    ]


def topk_rows(sources: Sources) -> Rows:
    return [
        {
            "operator": row["contender"],
            "error of Σ = k": if_number(row["sum error"], _small),
            "outside [0, 1]": if_number(row["outside [0, 1]"], _small),
            "gradient error": if_number(row["gradient error, differences"], _small),
            "forward+backward (ms)": if_number(row["forward+backward ms"]),
            "ratio": if_number(row["forward+backward ratio"]),
        }
        for row in rows_if_any(sources.benchmarks / "topk.csv")
        if row["case"].startswith("64×")
    ]


def embedding_rows(sources: Sources) -> Rows:
    """The cartpole's latent space trained with every operator: means over the seeds, lowest and highest."""
    path = sources.checkout / "benchmarks" / "embedding" / "results" / "embedding.csv"
    wasted = "updates without a finite gradient"
    return [
        {
            "operator": operator,
            "temperature": if_number(found[0]["temperature"]),
            "cost of a plan": _spread(_numbers(found, "cost")) or found[0]["failure"],
            "on fresh states": _spread(_numbers(found, "cost on fresh states")),
            wasted: f"{sum(_numbers(found, wasted)):.0f}",
            "CPU ms per update": _mean(_numbers(found, "CPU ms per update")),
        }
        for (operator,), found in grouped(rows_if_any(path), "operator").items()
    ]


def solve_rows(sources: Sources) -> Rows:
    """DCEM forward and backward, and a plan by MPPI forward."""
    found = []
    for name, passes in (("dcem", "forward+backward"), ("control", "forward")):
        found += [
            {
                "case": f"{row['case']}, {passes}",
                "contender": row["contender"],
                "time (ms)": if_number(row[f"{passes} ms"]) or row["failure"],
                "ratio": if_number(row[f"{passes} ratio"]),
            }
            for row in rows_if_any(sources.benchmarks / f"{name}.csv")
        ]
    return found


def _numbers(rows: list[dict[str, str]], name: str) -> list[float]:
    """Of a column, without empty cells."""
    return [float(row[name]) for row in rows if row[name]]


def _mean(values: list[float]) -> str:
    return number(fmean(values)) if values else ""


def _spread(values: list[float]) -> str:
    return f"{fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else ""


def _small(value: float) -> str:
    """Scientific where that is shorter."""
    return number(value) if value == 0 or abs(value) >= 1e-3 else scientific(value)

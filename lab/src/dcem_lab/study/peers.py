"""The library compared with its peers, as tables of the docs: argmin layers, soft top-k operators, solves."""

from __future__ import annotations

from statistics import fmean

from dcem_lab.report.documents import Rows
from dcem_lab.report.formats import number, scientific
from dcem_lab.report.sources import Sources, rows_if_any


def layers(sources: Sources, problem: str) -> list[dict[str, str]]:
    """Every contender on one problem of `benchmarks/layers`, with raw measurements."""
    path = sources.checkout / "benchmarks" / "layers" / "results" / "layers.csv"
    return [row for row in rows_if_any(path) if row["problem"] == problem]


def layer_rows(sources: Sources, problem: str) -> Rows:
    """The same, for a page."""
    return [
        {
            "layer": row["contender"],
            "cosine": _digits(row["cosine"]),
            "gradient error": _small(row["relative error"]),
            "excess": _small(row["excess"]),
            "found": f"{float(row['found']):.0%}" if row["found"] else "",
            "time (ms), B = 1": _digits(row["ms, B=1"]),
            "time (ms), B = 64": _digits(row["ms, B=64"]),
            "memory (MB)": _digits(row["MB"]),
            "failures": f"{row['failures']} of {row['instances']}",
        }
        for row in layers(sources, problem)
    ]


def topk_rows(sources: Sources) -> Rows:
    return [
        {
            "operator": row["contender"],
            "error of Σ = k": _small(row["sum error"]),
            "outside [0, 1]": _small(row["outside [0, 1]"]),
            "gradient error": _small(row["gradient error, differences"]),
            "forward+backward (ms)": _digits(row["forward+backward ms"]),
            "ratio": _digits(row["forward+backward ratio"]),
        }
        for row in rows_if_any(sources.benchmarks / "topk.csv")
        if row["case"].startswith("64×")
    ]


def embedding_rows(sources: Sources) -> Rows:
    """The cartpole's latent space trained with every operator: means over the seeds, lowest and highest."""
    path = sources.checkout / "benchmarks" / "embedding" / "results" / "embedding.csv"
    seeds: dict[str, list[dict[str, str]]] = {}
    for row in rows_if_any(path):
        seeds.setdefault(row["operator"], []).append(row)
    return [
        {
            "operator": operator,
            "temperature": _digits(found[0]["temperature"]),
            "cost of a plan": _spread([row["cost"] for row in found]) or found[0]["failure"],
            "on fresh states": _spread([row["cost on fresh states"] for row in found]),
            "updates without a finite gradient": _total(found, "updates without a finite gradient"),
            "CPU ms per update": _mean([row["CPU ms per update"] for row in found]),
        }
        for operator, found in seeds.items()
    ]


def solve_rows(sources: Sources) -> Rows:
    """DCEM forward and backward, and a plan by MPPI forward."""
    found = []
    for name, passes in (("dcem", "forward+backward"), ("control", "forward")):
        found += [
            {
                "case": f"{row['case']}, {passes}",
                "contender": row["contender"],
                "time (ms)": _digits(row[f"{passes} ms"]) or row["failure"],
                "ratio": _digits(row[f"{passes} ratio"]),
            }
            for row in rows_if_any(sources.benchmarks / f"{name}.csv")
        ]
    return found


def _spread(texts: list[str]) -> str:
    values = [float(text) for text in texts if text]
    return f"{fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else ""


def _mean(texts: list[str]) -> str:
    values = [float(text) for text in texts if text]
    return number(fmean(values)) if values else ""


def _total(rows: list[dict[str, str]], name: str) -> str:
    return str(sum(int(row[name]) for row in rows if row[name]))


def _digits(text: str) -> str:
    return number(float(text)) if text else ""


def _small(text: str) -> str:
    """Scientific where that is shorter."""
    if not text:
        return ""
    value = float(text)
    return number(value) if value == 0 or abs(value) >= 1e-3 else scientific(value)

"""The library compared with its peers: the section on argmin layers, and tables of the docs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from markupsafe import Markup

from dcem_lab.report.charts import Mark, rows
from dcem_lab.report.documents import Rows
from dcem_lab.report.formats import if_number, number, scientific
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import Section, Sources, grouped, rows_if_any
from dcem_lab.report.templates import part, render

COMMAND = "python benchmarks/layers/run.py"
TITLES = {
    "quadratic": "A quadratic",
    "multimodal": "A multimodal energy",
    "projection": "A projection",
    "pendulum": "Pendulum",
    "regression": "An energy-based regression",
}
ABOUT = (
    "Layers whose output is an argmin: the accuracy of gradients and solutions, time, memory and failures. "
    "benchmarks/layers/README.md explains problems, settings and columns."
)
CAPTION = (
    "Median relative error of the gradient, on a logarithmic axis: left is better. A gradient of zero has an "
    "error of 1. Hover over a point for its time and the share of minima found."
)


def section(sources: Sources) -> Section:
    return Section("layers", "Argmin layers", _body(sources), about="DCEM compared with other packages.")


def _body(sources: Sources) -> Markup:
    found = {name: measured for name in TITLES if (measured := layers(sources, name))}
    if not found:
        return part("not_run", COMMAND)
    tables = [(TITLES[name], layer_rows(sources, name)) for name in found]
    operators = [
        ("Soft top-k operators", topk_rows(sources)),
        ("On an H200, 2,500 rows of 100 scores, k = 10, forward and backward", gpu_topk_rows(sources)),
        ("The cartpole's latent space, trained with each of them", embedding_rows(sources)),
    ]
    return render(
        "study/benchmark.html",
        about=[ABOUT],
        caption=CAPTION,
        panels=[_panel(TITLES[name], measured) for name, measured in found.items()],
        tables=[*tables, *((title, known) for title, known in operators if known)],
    )


def _panel(title: str, measured: Sequence[dict[str, str]]) -> Markup:
    """A row for every layer, ours in a colour of their own."""
    groups = []
    for row in measured:
        name = row["contender"]
        if row["relative error"]:
            time = f", {float(row['ms, B=1']):.3g} ms for one problem" if row["ms, B=1"] else ""
            label = f"{name}: {float(row['relative error']):.1e}{time}, {float(row['found']):.0%} found"
            color = "c0" if name.lower().startswith("dcem") else "c1"
            groups.append((name, [Mark(label, color, float(row["relative error"]))]))
    chart = rows(title, groups, Scale(1e-16, 10, log=True), "gradient error")
    return part("panel", title, chart, [("c0", "dcem"), ("c1", "others")])


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


def gpu_topk_rows(sources: Sources) -> Rows:
    return [
        {"operator": row["what"], "ms": if_number(row["ms"]), "ratio": if_number(row["ratio"])}
        for row in rows_if_any(sources.gpu_benchmarks / "topk.csv")
        if row["case"] == "2500×100, k=10, forward+backward"
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
    """DCEM and an update of a latent action space, forward and backward, and a plan by MPPI forward."""
    found = []
    tables = ("dcem", "forward+backward"), ("embedding", "forward+backward"), ("control", "forward")
    for name, passes in tables:
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


def compiling_rows(sources: Sources) -> Rows:
    """What compiled solves take to start."""
    return [
        {
            "solve": row["case"],
            "torch's cache": row["cache"],
            "first call (s)": if_number(row["first call, s"]),
            "second batch size (s)": if_number(row["second batch size, s"]),
        }
        for row in rows_if_any(sources.benchmarks / "compiling.csv")
    ]


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

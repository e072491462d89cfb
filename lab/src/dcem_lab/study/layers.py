"""The section on argmin layers: ours compared with others, on the problems of `benchmarks/layers`."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from dcem_lab.report.charts import Mark, rows
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import Section, Sources
from dcem_lab.report.templates import part, render
from dcem_lab.study import peers

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
    found = {name: measured for name in TITLES if (measured := peers.layers(sources, name))}
    if not found:
        return part("not_run", COMMAND)
    tables = [(TITLES[name], peers.layer_rows(sources, name)) for name in found]
    operators = [
        ("Soft top-k operators", peers.topk_rows(sources)),
        ("The cartpole's latent space, trained with each of them", peers.embedding_rows(sources)),
    ]
    return render(
        "study/benchmark.html",
        about=[ABOUT],
        caption=CAPTION,
        panels=[_errors(TITLES[name], measured) for name, measured in found.items()],
        tables=[*tables, *((title, known) for title, known in operators if known)],
    )


def _errors(title: str, measured: Sequence[dict[str, str]]) -> Markup:
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

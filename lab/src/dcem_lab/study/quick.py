"""The section on a quick run: what this machine just did, from the run's own folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from markupsafe import Markup

from dcem_lab.regression import numbers as regression
from dcem_lab.regression.section import curves, records_of
from dcem_lab.report.charts import Line, figure, lines, panel
from dcem_lab.report.formats import counted, number
from dcem_lab.report.pictures import film
from dcem_lab.report.scales import Scale, covering
from dcem_lab.report.sources import Section, Sources, or_not_run, read_json, read_rows
from dcem_lab.report.templates import part, render

COMMAND = "dcem reproduce --quick"
_FILM = "A pretrained cartpole controller (left) and CEM over all forces (right), recorded on your machine."


def section(sources: Sources) -> Section | None:
    if sources.quick is None:
        return None
    results = sources.quick / "results"
    films = [*sorted(sources.quick.glob("*.mp4")), *sorted(sources.quick.glob("*.gif"))]
    body = render(
        "study/quick.html",
        regression=or_not_run(lambda: _regression(results), COMMAND),
        cartpole=or_not_run(lambda: _cartpole(results), COMMAND),
        shipped=or_not_run(lambda: _shipped(results), COMMAND),
        films=[(film(path), _FILM) for path in films[:1]],
    )
    return Section("quick", "Your quick run", body, folded=False)


def _regression(results: Path) -> Markup:
    variants = regression.read_variants(results)
    table = part("table", regression.table(variants))
    return table + curves(variants) + part("provenance", records_of(results, variants))


def _cartpole(results: Path) -> Markup:
    path = next(iter(sorted((results / "cartpole").glob("*/seed0/curve.csv"))), None)
    if path is None:
        raise FileNotFoundError(f"{results / 'cartpole'} must have a training, found none")
    rows = read_rows(path)
    steps = np.array([float(row["step"]) for row in rows])
    series = [
        Line(label, color, steps, np.array([float(row[name]) for row in rows]))
        for label, color, name in (("validation", "c0", "validation_cost"), ("training", "c1", "train_cost"))
    ]
    scale = covering([float(value) for line in series for value in line.y])
    title = "Cost while training a two-dimensional latent space"
    chart = lines(title, series, Scale(0, float(steps[-1])), scale, "updates", "cost")
    best = min(float(row["best_cost"]) for row in rows)
    caption = f"Blue: validation states. Orange: training states. The best validation cost is {best:.2f}."
    record = read_json(path.parent / "run.json")
    return figure(caption, [panel(title, chart)]) + part("provenance", {"cartpole": record})


def _shipped(results: Path) -> Markup:
    rows = []
    costs: dict[str, list[float]] = {}
    sampled = {}
    for row in read_rows(results / "cartpole" / "shipped.csv"):
        if row["states"] == "validation":
            costs.setdefault(row["controller"], []).append(float(row["cost"]))
            sampled[row["controller"]] = row["trajectories"]
    for name, found in costs.items():
        rows.append(
            {
                "controller": name,
                "what": f"mean cost on the validation states, {int(sampled[name]):,} trajectories per plan",
                "ours": f"{np.mean(found):.2f}",
                "runs": counted(len(found), "solve"),
            }
        )
    for path in sorted((results / "dmc").glob("*.csv")):
        totals = [float(row["return"]) for row in read_rows(path)]
        rows.append(
            {
                "controller": path.stem,
                "what": "median return of an episode",
                "ours": number(float(np.median(totals))),
                "runs": counted(len(totals), "episode"),
            }
        )
    return part("table", rows)

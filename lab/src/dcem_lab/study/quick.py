"""The section on a quick run: what this machine just did, from the run's own folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from markupsafe import Markup

from dcem_lab.regression import numbers as regression
from dcem_lab.regression.section import curves, records_of
from dcem_lab.report.charts import Line, lines
from dcem_lab.report.formats import counted, number
from dcem_lab.report.pictures import film
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import Section, Sources, grouped, or_not_run, read_columns, read_json, read_rows
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
    table = part("table", list(regression.table(variants)))
    return table + curves(variants) + part("provenance", records_of(results, variants))


def _cartpole(results: Path) -> Markup:
    path = next(iter(sorted((results / "cartpole").glob("*/seed0/curve.csv"))), None)
    if path is None:
        raise FileNotFoundError(f"{results / 'cartpole'} must have a training, found none")
    curve = read_columns(path)
    steps = curve["step"]
    series = [
        Line(label, color, steps, curve[name])
        for label, color, name in (("validation", "c0", "validation_cost"), ("training", "c1", "train_cost"))
    ]
    low, high = (float(end([line.y for line in series])) for end in (np.min, np.max))
    room = (high - low) / 20 or 1.0
    scale = Scale(low - room, high + room)
    title = "Cost while training a two-dimensional latent space"
    chart = lines(title, series, Scale(0, float(steps[-1])), scale, "updates", "cost")
    best = curve["best_cost"].min()
    caption = f"Blue: validation states. Orange: training states. The best validation cost is {best:.2f}."
    record = read_json(path.parent / "run.json")
    return part("figure", caption, [part("panel", title, chart)]) + part("provenance", {"cartpole": record})


def _shipped(results: Path) -> Markup:
    scores = grouped(read_rows(results / "cartpole" / "shipped.csv"), "states", "controller", "trajectories")
    rows = [
        {
            "controller": controller,
            "what": f"mean cost on the validation states, {int(sampled):,} trajectories per plan",
            "ours": f"{np.mean([float(row['cost']) for row in found]):.2f}",
            "runs": counted(len(found), "solve"),
        }
        for (states, controller, sampled), found in scores.items()
        if states == "validation"
    ]
    for path in sorted((results / "dmc").glob("*.csv")):
        totals = read_columns(path)["return"]
        row = {"controller": path.stem, "what": "median return of an episode"}
        rows.append(row | {"ours": number(np.median(totals)), "runs": counted(len(totals), "episode")})
    return part("table", rows)

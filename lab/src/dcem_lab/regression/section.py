"""The section on regression: the energy surface that each optimiser leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dcem_lab import paper
from dcem_lab.regression import numbers as regression
from dcem_lab.regression.numbers import Variant, binned
from dcem_lab.report.charts import Line, figure, frame, legend, lines, panel, place
from dcem_lab.report.controls import play_button, select, slider
from dcem_lab.report.html import Child, Html, element, join, paragraph
from dcem_lab.report.pictures import shades
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import Section, Sources, not_run, provenance, read_json, reproduce
from dcem_lab.report.style import log_interval
from dcem_lab.report.tables import NOT_RUN, Claim, claims_table, judge, scientific, table

COMMAND = "dcem train regression preset=dcem"
_ERRORS = Scale(1e-5, 1e3, log=True)
_X, _Y = Scale(0, 2 * np.pi), Scale(-7, 4)
_WINDOW = 1000  # updates around the paper's that a training error is averaged over


def section(sources: Sources) -> Section:
    try:
        variants = regression.read_variants(sources.results)
    except FileNotFoundError:
        absent = [Claim(*_naming(name), _paper(name), "", "", "", NOT_RUN) for name in regression.PAPER]
        return Section("regression", "Regression", not_run(COMMAND), absent)
    papers = [variant for variant in variants if variant.name in regression.PAPER]
    claims = [_claim(variant) for variant in papers]
    config = variants[0].config
    records = {
        variant.label: read_json(sources.results / "regression" / variant.name / "run.json")["seed0"]
        for variant in variants
    }
    body = join(
        paragraph(
            "An energy network E(y | x) is trained so that the y of lowest energy fits x sin x. Whatever "
            "finds that y shapes the surface: unrolled gradient descent only has to end at the right place "
            f"after {config['n_iters']} steps, wherever that is; DCEM samples, and has to leave a minimum "
            "there.",
        ),
        reproduce(next(iter(records.values()))),
        _explorer(variants),
        element("h3", "Beside the paper"),
        claims_table(claims),
        paragraph(
            f"Training error at {paper.REGRESSION_UPDATES:,} updates (averaged over ±{_WINDOW:,}), "
            "geometric mean over seeds; the paper's is read from its figure by eye.",
        ),
        element("ul", *(element("li", sentence) for sentence in regression.sentences(variants))),
        curves(variants),
        table(regression.table(variants), "Every variant; the lowest and the highest seed in brackets."),
        provenance(records),
    )
    return Section("regression", "Regression", body, claims, {"regression-data": explorer_data(variants)})


def _naming(name: str) -> tuple[str, str, str]:
    return "Regression", regression.LOOKS[name][0], "training MSE"


def _paper(name: str) -> str:
    return f"≈ {scientific(paper.REGRESSION_MSE[name])}".replace(".0e", "e")


def _claim(variant: Variant) -> Claim:
    near = np.abs(variant.steps - paper.REGRESSION_UPDATES) <= _WINDOW
    if not near.any():
        near = variant.steps == variant.steps[-1]
    errors = np.exp(np.log(variant.curve[:, near]).mean(1))
    mean, low, high = log_interval(errors)
    return Claim(
        *_naming(variant.name),
        _paper(variant.name),
        scientific(mean),
        str(len(errors)),
        f"[{scientific(low)}, {scientific(high)}]",
        judge(errors, paper.REGRESSION_MSE[variant.name], lower_is_better=True, log=True),
    )


# Figures


def curves(variants: Sequence[Variant]) -> Html:
    """Errors while training and against iterations at test time: the paper's two, then the others."""
    papers = [variant for variant in variants if variant.name in regression.PAPER] or list(variants)
    others = [variant for variant in variants if variant not in papers]
    groups = [("the paper's two", papers), ("variants", others)] if others else [("", papers)]
    training, testing = [], []
    for name, group in groups:
        of = f", {name}" if name else ""
        banded = group is papers
        steps = Scale(0, float(max(variant.steps[-1] for variant in group)))
        series = [line for v in group for line in _seeds(v, *binned(v.steps, v.curve), banded)]
        chart = lines("Training error", series, steps, _ERRORS, "updates", "MSE")
        training.append(panel(f"Training error{of}", chart, _legend(group)))
        most = max(variant.errors.shape[1] for variant in group)
        series = [
            line for v in group for line in _seeds(v, np.arange(1, v.errors.shape[1] + 1), v.errors, banded)
        ]
        chart = lines("Error after iterations", series, Scale(1, most), _ERRORS, "iterations", "MSE")
        testing.append(panel(f"Error at test time{of}", chart, _legend(group)))
    caption = (
        "Mean squared error, geometric mean and 95% interval over seeds for the paper's two methods, every "
        "seed for the variants. At test time the number of inner iterations differs from that in training."
    )
    return figure(caption, *training, *testing, wide=True)


def _seeds(variant: Variant, x: np.ndarray, samples: np.ndarray, banded: bool) -> list[Line]:
    samples, color = np.maximum(samples, 1e-12), color_of(variant)
    if not banded or len(samples) == 1:
        return [Line(variant.label, color, x, seed, thin=banded is False) for seed in samples]
    return [Line(variant.label, color, x, *log_interval(samples))]


def _legend(variants: Sequence[Variant]) -> Html:
    return legend([(color_of(variant), variant.label) for variant in variants])


def color_of(variant: Variant) -> str:
    """The class that the stylesheet colours."""
    names = list(regression.LOOKS)
    known = names.index(variant.name) if variant.name in names else len(names)
    return f"c{known % 8}"


# The figure with a slider


def _explorer(variants: Sequence[Variant]) -> Html:
    labels = [variant.label for variant in variants]
    panels = [_surface_panel(side, labels, min(side, len(labels) - 1)) for side in range(2)]
    most, seeds = variants[0].predictions.shape[1], len(variants[0].predictions)
    trained = variants[0].config["n_iters"]
    controls = element(
        "div",
        slider("regression-iteration", "iterations", 1, most, trained),
        play_button("regression-iteration"),
        select("regression-seed", "seed", [str(seed) for seed in range(seeds)]),
        class_="controls",
    )
    caption = (
        "The learned energy (lighter is lower, for each x), the target as a line, and the answer after so "
        "many iterations as dots. Move the slider past the number trained with and see who stays."
    )
    return element(
        "div", controls, figure(caption, *panels, wide=True), class_="explorer", id="regression-explorer"
    )


def _surface_panel(side: int, labels: Sequence[str], chosen: int) -> Html:
    x, y = place(_X, _Y)
    image = element(
        "image", x=x.first, y=y.last, width=x.last - x.first, height=y.first - y.last,
        preserveAspectRatio="none", class_="surface",
    )  # fmt: skip
    layers: list[Child] = [image, element("path", class_="target"), element("g", class_="points")]
    name = f"regression-{side}"
    return element(
        "div",
        select(f"{name}-variant", "method", labels, chosen),
        frame("Energy surface and predictions", x, y, *layers, xlabel="x", ylabel="y", id_=name),
        element("output", class_="readout", for_="regression-iteration", id=f"{name}-readout"),
        class_="panel",
    )


def explorer_data(variants: Sequence[Variant]) -> dict[str, Any]:
    """Surfaces as pictures and predictions as numbers, by variant and seed."""
    return {
        "x": _short(variants[0].x),
        "target": _short(variants[0].target),
        "variants": [
            {
                "label": variant.label,
                "trained": variant.config["n_iters"],
                "surfaces": [
                    shades(shade, shade.min(), shade.max())
                    for shade in map(regression.shaded, variant.surface)
                ],
                "predictions": [[_short(answers) for answers in seed] for seed in variant.predictions],
                "errors": [[float(f"{error:.4g}") for error in seed] for seed in variant.errors],
            }
            for variant in variants
        ],
    }


def _short(values: np.ndarray) -> list[float]:
    return [round(float(value), 3) for value in np.clip(values, -99, 99)]

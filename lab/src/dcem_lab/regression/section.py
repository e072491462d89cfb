"""The section on regression: the energy surface that is learned with each optimiser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from dcem_lab import paper
from dcem_lab.regression import numbers as regression
from dcem_lab.regression.numbers import Variant
from dcem_lab.report.charts import Line, lines, place
from dcem_lab.report.claims import Claim, judge
from dcem_lab.report.formats import scientific
from dcem_lab.report.pictures import shades
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import Section, Sources, read_json, seeds_of
from dcem_lab.report.statistics import binned, log_interval
from dcem_lab.report.templates import part, render

COMMAND = "dcem train regression preset=dcem"
_ERRORS = Scale(1e-5, 1e3, log=True)  # DCEM runs away on an untrained energy, which has no minimum
_X, _Y = Scale(0, 2 * np.pi), Scale(-7, 4)


def section(sources: Sources) -> Section:
    try:
        variants = regression.read_variants(sources.results)
    except FileNotFoundError:
        absent = [Claim(*_naming(name), regression.PAPER_MSE[name]) for name in regression.PAPER]
        return Section("regression", "Regression", part("not_run", COMMAND), absent)
    claims = [_claim(variant) for variant in variants if variant.name in regression.BESIDE_PAPER]
    body = render(
        "regression/section.html",
        trained=variants[0].config["n_iters"],
        records=records_of(sources.results, variants),
        updates=paper.REGRESSION_UPDATES,
        window=regression.WINDOW,
        sentences=regression.sentences(variants),
        curves=curves(variants),
        rows=list(regression.table(variants)),
    )
    return Section(
        "regression",
        "Regression",
        body,
        claims,
        list(failures(variants)),
        {"regression-data": explorer_data(variants)},
        _opening(variants),
        "Training errors, errors after more iterations, and all variants.",
    )


def _opening(variants: Sequence[Variant]) -> Markup:
    """Two energy surfaces next to each other, with a slider over iterations."""
    first, (x, y) = variants[0], place(_X, _Y)
    shares = " and ".join(f"{v.at_minimum.mean():.0%} with {v.label}" for v in variants[:2])
    return render(
        "regression/opening.html",
        sentence=f"Predictions should be minima of the learned energy: {shares} are.",
        iterations=first.predictions.shape[1],
        seeds=len(first.predictions),
        labels=[variant.label for variant in variants],
        x=x,
        y=y,
    )


def records_of(results: Path, variants: Sequence[Variant]) -> dict[str, dict[str, Any]]:
    """Of the first seed of each."""
    root = results / "regression"
    return {v.label: read_json(seeds_of(root / v.name)[0] / "run.json") for v in variants}


def _naming(name: str) -> tuple[str, str, str]:
    return "Regression", regression.LABELS[name], f"training MSE at {paper.REGRESSION_UPDATES:,} updates"


def _claim(variant: Variant) -> Claim:
    errors, known = variant.trained_for(), paper.REGRESSION_MSE[regression.BESIDE_PAPER[variant.name]]
    mean, low, high = map(scientific, log_interval(errors))
    return Claim(
        *_naming(variant.name),
        regression.PAPER_MSE[variant.name],
        mean,
        str(len(errors)),
        f"[{low}, {high}]",
        judge(errors, known, lower_is_better=True, log=True),
    )


def failures(variants: Sequence[Variant]) -> Iterator[str]:
    """Sentences whose condition the numbers meet."""
    named = {variant.name: variant for variant in variants}
    errors = {variant.name: ", ".join(map(scientific, variant.trained_error)) for variant in variants}
    dcem = named.get("dcem")
    if dcem is not None and dcem.growth.max() > 2:
        yield (
            f"Regression: DCEM's error grows with more iterations than in training. After "
            f"{dcem.errors.shape[1]} iterations it is {dcem.growth.min():.2g} to {dcem.growth.max():.2g} "
            f"times that after {dcem.config['n_iters']}. That of gradient descent grows far more."
        )
    for variant in (named[name] for name in regression.FIXES if name in named):
        if variant.growth.max() <= 2:
            yield (
                f"Regression: a simple change also fixes gradient descent. {variant.label}: "
                f"{variant.at_minimum.mean():.0%} of predictions are at minima, and more iterations do no "
                f"harm (errors by seed: {errors[variant.name]}). The paper's conclusion holds for plain "
                "unrolling."
            )
    for variant in variants:
        if failed := int((variant.trained_error > 1).sum()):
            yield (
                f"Regression: {variant.label} fails in {failed} of {len(variant.errors)} seeds (errors by "
                f"seed: {errors[variant.name]})."
            )


def curves(variants: Sequence[Variant]) -> Markup:
    """Errors while training and against iterations at test time: the paper's two, then the others."""
    papers = [variant for variant in variants if variant.name in regression.PAPER] or list(variants)
    others = [variant for variant in variants if variant not in papers]
    groups = {", the paper's methods": papers, ", variants": others} if others else {"": papers}
    training, testing = [], []
    for of, group in groups.items():
        legend = [(color_of(variant), variant.label) for variant in group]
        updates, iterations = [], []
        for variant in group:
            x, logs = binned(variant.steps, np.log(np.maximum(variant.curve, 1e-12)), bins=100)
            updates += _seeds(variant, x, np.exp(logs), banded=group is papers)
            x = np.arange(1, variant.errors.shape[1] + 1)
            iterations += _seeds(variant, x, variant.errors, banded=group is papers)
        most = Scale(0, float(max(variant.steps[-1] for variant in group)))
        chart = lines("Training error", updates, most, _ERRORS, "updates", "MSE")
        training.append(part("panel", f"Training error{of}", chart, legend))
        most = Scale(1, max(variant.errors.shape[1] for variant in group))
        chart = lines("Error after iterations", iterations, most, _ERRORS, "iterations", "MSE")
        testing.append(part("panel", f"Error at test time{of}", chart, legend))
    caption = (
        "Mean squared error: geometric mean and 95% interval over seeds for the paper's two methods, single "
        "seeds for the variants. At test time the number of iterations differs from that in training."
    )
    return part("figure", caption, [*training, *testing], "panels wide")


def _seeds(variant: Variant, x: np.ndarray, samples: np.ndarray, banded: bool) -> list[Line]:
    samples, color = np.maximum(samples, 1e-12), color_of(variant)
    if not banded or len(samples) == 1:
        return [Line(variant.label, color, x, seed, thin=banded is False) for seed in samples]
    return [Line(variant.label, color, x, *log_interval(samples))]


def color_of(variant: Variant) -> str:
    """The class that the stylesheet colours."""
    return f"c{regression.place(variant.name) % 8}"


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

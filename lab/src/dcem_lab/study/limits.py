"""The section on what did not work, and on where this differs from the paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dcem_lab import paper
from dcem_lab.cartpole import numbers as cartpole_numbers
from dcem_lab.cartpole.section import closed_loop
from dcem_lab.regression import numbers as regression
from dcem_lab.report.html import Html, element, join, paragraph
from dcem_lab.report.markdown import by_heading, render
from dcem_lab.report.sources import Section, Sources
from dcem_lab.report.tables import details, scientific, table
from dcem_lab.suite.numbers import CONTROLLERS, evaluated, read_evaluations, read_trainings

DEVIATIONS = "deviations.md"
FAR = 200
"""An interval of returns so wide is no measurement of one number."""


def section(sources: Sources) -> Section:
    found = [*_regression(sources.results), *_cartpole(sources.results), *_dmc(sources.results)]
    listed = element("ul", *(element("li", sentence) for sentence in found)) if found else None
    body = join(
        element("h3", "What did not work"),
        listed or paragraph("Nothing has been run yet that could fail."),
        _closed_loop(sources.results),
        element("h3", "Deviations from the paper"),
        _deviations(sources.docs / DEVIATIONS),
    )
    return Section("limits", "What did not work, and deviations", body)


def _regression(results: Path) -> Iterator[str]:
    """Sentences whose condition the numbers meet."""
    try:
        variants = {variant.name: variant for variant in regression.read_variants(results)}
    except FileNotFoundError:
        return
    dcem = variants.get("dcem")
    if dcem is not None and dcem.growth.max() > 2:
        yield (
            "Regression: DCEM does not quite stay where it was trained to end. After "
            f"{dcem.errors.shape[1]} iterations its error is {dcem.growth.min():.2g} to "
            f"{dcem.growth.max():.2g} times that after {dcem.config['n_iters']}; gradient descent's grows "
            "far more, but the claim is not met to the letter."
        )
    for name in ("gd-starts", "gd-steps"):
        variant = variants.get(name)
        if variant is not None and variant.growth.max() <= 2:
            errors = variant.error_at(variant.config["n_iters"])
            yield (
                f"Regression: a simple trick rescues gradient descent. {variant.label}: "
                f"{variant.at_minimum.mean():.0%} of predictions are at minima, and more iterations do no "
                f"harm (errors {', '.join(map(scientific, errors))}). The paper's contrast holds for plain "
                "unrolling."
            )
    for variant in variants.values():
        errors = variant.error_at(variant.config["n_iters"])
        failed = int((errors > 1).sum())
        if failed:
            yield (
                f"Regression: {variant.label} fails in {failed} of {len(errors)} seeds (errors "
                f"{', '.join(map(scientific, errors))})."
            )


def _cartpole(results: Path) -> Iterator[str]:
    """Likewise."""
    try:
        study = cartpole_numbers.read(results)
    except FileNotFoundError:
        return
    expert = paper.CARTPOLE_EXPERT
    below = []
    for (dim, tau), variant in study.variants.items():
        ours, known = (variant.best[:, -1] / expert).mean(), paper.CARTPOLE_FACTORS[dim, tau]
        if ours < known:
            other = study.one_state.get((dim, tau))
            again = (
                f", ours with one, cut short, {(other.best[:, -1] / expert).mean():.3f}"
                if other is not None
                else ""
            )
            below.append(f"d = {dim}, τ = {tau:g}: {ours:.3f} (the paper {known:.3f}{again})")
    if below:
        yield join(
            f"Cartpole: {len(below)} of {len(study.variants)} combinations have a lower mean factor than the "
            "paper's, and ours were trained on several states an update, the paper's on one:",
            element("ul", *(element("li", one) for one in below)),
        )
    soft, hard = (_autoencoders(study, method) for method in ("dcem", "cem"))
    if soft and hard:
        yield (
            "Cartpole: the latent space of an autoencoder of expert plans suits a hard search, not a soft "
            f"one. Searched by CEM it costs {hard}, searched by DCEM {soft}; the paper's expert costs "
            f"{expert}."
        )


def _dmc(results: Path) -> Iterator[str]:
    """Likewise."""
    for one in read_evaluations(results / "dmc" / "evaluations.csv"):
        if one.controller not in CONTROLLERS:
            continue
        low, high = one.interval
        if high - low > FAR:
            label, median = one.label.replace("\n", " "), np.median(one.totals)
            yield (
                f"{one.task}: {label} either works or does not. {(one.totals < median / 2).sum()} of "
                f"{len(one.totals)} episodes have less than half of the median, {median:.0f}, whose 95% "
                f"interval reaches from {low:.0f} to {high:.0f}; the mean is {one.totals.mean():.0f}."
            )
    trainings = {f"{one.task}-{one.preset}": one for one in read_trainings(results / "embed")}
    for name, offline in trainings.items():
        online = trainings.get(name.removesuffix("-offline"))
        if online is None or online is offline:
            continue
        means = [evaluated(one.curves[0], "eval_mean")[1] for one in (offline, online)]
        alone, together = (values[-1] if len(values) else np.nan for values in means)
        if alone < together / 2:
            yield (
                f"{offline.task}: a latent space learned offline fails, as it did for the paper. It ends "
                f"with a mean return of {alone:.0f}; online, with as many updates, it is {together:.0f}."
            )


def _autoencoders(study: cartpole_numbers.Study, method: str) -> str:
    """Mean costs by latent dimension, in words; nothing where they were not measured."""
    parts = []
    for dim in cartpole_numbers.DIMS:
        costs = [
            cost
            for (name, states), cost in study.scores.items()
            if name.startswith(f"autoencoder-{dim}-{method}-") and states == "validation"
        ]
        parts += [f"{np.mean(np.concatenate(costs)):.2f} (d = {dim})"] if costs else []
    return ", ".join(parts)


def _closed_loop(results: Path) -> Html | None:
    rows = closed_loop(results)
    if not rows:
        return None
    embedded = [row for row in rows if row["controller"].startswith("cartpole")]
    most = max((int(row["stay_up"]) for row in embedded), default=0)
    about = paragraph(
        "Cartpole: the embedded controllers learn to plan once, from a first state. Asked to plan anew after "
        f"every step, for which they were not trained, they keep the pole up from at most {most} of "
        f"{rows[0]['states']} states:"
    )
    shown = [
        {
            "controller": row["controller"],
            "pole stays up": f"{row['stay_up']} of {row['states']} states",
            "steps": row["steps"],
            "median cost a step": row["median_cost_a_step"],
        }
        for row in rows
    ]
    return join(about, table(shown))


def _deviations(path: Path) -> Html:
    if not path.exists():
        return paragraph(f"They are listed in docs/{DEVIATIONS}, which is not here.")
    first, others = by_heading(path)
    return join(render(first), *(details(heading, render(text)) for heading, text in others.items()))

"""Every controller of cheetah and walker: its videos and the returns of all its episodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from dcem_lab.report.charts import Dots, dots
from dcem_lab.report.pictures import film
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import read_json
from dcem_lab.report.statistics import FAILED
from dcem_lab.report.templates import part
from dcem_lab.suite.numbers import CONTROLLERS, SINGLE, Evaluation, other_seeds, papers, seed_of
from dcem_lab.suite.results import CONTROLLERS as CONTROLLER_OF

LEGEND = (
    ("c0", "an episode"),
    ("c1", "a failure: less than half of the median"),
    ("ink bar", "the paper's median and quartiles"),
    ("ink triangle", "the episode in a video"),
)
WITHOUT_PAPER = tuple(entry for entry in LEGEND if entry[0] != "ink bar")
_RETURNS = Scale(0, 1000)

Key = tuple[str, str]
"""Task and controller."""


class Film(NamedTuple):
    address: str
    total: float


def read_films(folder: Path) -> dict[Key, list[Film]]:
    """What `dcem play` wrote, the best episode first."""
    found: dict[Key, list[Film]] = {}
    for path in sorted(folder.glob("*.json")):
        about = read_json(path)
        key = about["task"].replace(".", "-"), about.get("controller") or CONTROLLER_OF[about["experiment"]]
        found.setdefault(key, []).append(Film(film(path.with_suffix(".mp4")), about["total"]))
    return {key: sorted(films, key=lambda one: -one.total) for key, films in found.items()}


def controller_cards(
    evaluations: Sequence[Evaluation],
    films: Mapping[Key, Sequence[Film]],
    controllers: Collection[str] = CONTROLLERS,
) -> dict[Key, Markup]:
    """Of these controllers, the paper's unless others are named, with an ensemble or a single model."""
    shown = {
        (one.task, one.controller): one
        for one in evaluations
        if one.controller.removesuffix(SINGLE) in controllers
    }
    return {key: _card(one, evaluations, films.get(key, ())) for key, one in shown.items()}


def newest(evaluations: Sequence[Evaluation]) -> dict[Key, Evaluation]:
    """The controller of the last phase that was evaluated, for every task."""
    last = {one.task: one for one in evaluations if one.controller in CONTROLLERS}
    return {(one.task, one.controller): one for one in last.values()}


def _card(one: Evaluation, evaluations: Sequence[Evaluation], films: Sequence[Film]) -> Markup:
    first, *others = (row for each in (one, *other_seeds(one, evaluations)) for row in _dots(each))
    # With several runs, a video does not say which run it shows.
    marked = [film.total for film in films] if len(one.runs) == 1 else []
    first = replace(first, known=papers(one), marked=marked)
    shown = [
        (film.address, f"return {film.total:.0f}{', a failure' if film.total < first.low else ''}")
        for film in films
    ]
    title = f"{one.task}, {one.label}"
    chart = dots(f"Returns of {title}", [first, *others], _RETURNS, "return of an episode")
    return part("panel", title, part("films", shown) + chart)


def _dots(one: Evaluation) -> Iterator[Dots]:
    """A row for each run."""
    for run, totals in one.runs.items():
        median = float(np.median(totals))
        which = "another seed: " if "-seed-" in one.controller else ""
        which = f"seed {seed_of(run)}: " if len(one.runs) > 1 else which
        yield Dots(f"{which}{len(totals)} episodes, median {median:.0f}", totals, FAILED * median)

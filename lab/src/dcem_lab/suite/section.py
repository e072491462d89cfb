"""The section on cheetah and walker: a world model, a latent action space on it, PPO through the planner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from dcem_lab import paper
from dcem_lab.report.charts import Line, Rule, lines
from dcem_lab.report.claims import NOT_REPORTED, Claim, beside, qualified
from dcem_lab.report.formats import number
from dcem_lab.report.markdown import by_heading
from dcem_lab.report.markdown import render as markdown
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import Section, Sources
from dcem_lab.report.statistics import failed, two_humps
from dcem_lab.report.templates import code, part, render
from dcem_lab.suite import numbers, questions
from dcem_lab.suite.beside import beside_rows, read_peers
from dcem_lab.suite.cards import LEGEND, Key, controller_cards, newest, read_films
from dcem_lab.suite.latent_figure import latent_figure
from dcem_lab.suite.numbers import (
    CONTROLLERS,
    SINGLE,
    Evaluation,
    Training,
    by_task,
    evaluated,
    label_of,
    other_seeds,
    papers,
)
from dcem_lab.suite.walker_starts import start_rows

# How each phase is run, and what its controller is called.
PHASES = {
    "planet": ("dcem train planet task=cheetah-run preset=best", "full-cem"),
    "embed": ("dcem train embed from=RUN preset=best", "latent-dcem"),
    "ppo": ("dcem train ppo from=RUN", "latent-dcem-ppo"),
}
CLAIMS = "What the paper says about it, line by line"
_COLORS = [f"{color}{dots}" for dots in ("", " dotted") for color in ("c0", "c1", "c2", "c3", "c4", "c6")]
_RETURNS = Scale(0, 1000)
_STEPS = (100_000, 500_000, 1_000_000, 2_000_000)


def section(sources: Sources) -> Section:
    results, folder = sources.results, sources.results / "dmc"
    phases = {name: numbers.read_trainings(results / name) for name in PHASES}
    evaluations = numbers.read_evaluations(results)
    cards = controller_cards(evaluations, read_films(folder / "videos"))
    planning = numbers.planning_rows(results)
    machines = "; ".join(dict.fromkeys(row.pop("measured on") for row in planning))
    body = render(
        "suite/section.html",
        cards=[card for key, card in cards.items() if key not in newest(evaluations)],
        legend=LEGEND,
        evaluations=named([_evaluation(one) for one in evaluations], "task", "controller"),
        planning=named(planning, "task", "controller"),
        machines=machines,
        **{name: _phase(name, results, trainings) for name, trainings in phases.items()},
        beside_others=_beside_others(results, phases["planet"]),
        questions={
            "planet": with_code(questions.planet_rows(results)),
            "preset": with_code(questions.preset_rows(results)),
            "embed": with_code(questions.embed_rows(results)),
            "ppo": with_code(questions.ppo_rows(results)),
        },
        starts=start_rows(results),
        finetuned=list(questions.finetuned_rows(results)),
        latent=latent_figure(folder / "latent"),
        heading=CLAIMS,
        lines=markdown(by_heading(sources.docs / "claims.md")[1].get(CLAIMS, "")),
        records={
            name: record
            for phase, trainings in enumerate(phases.values(), 1)
            for name, record in numbers.records_of(trainings, f"phase {phase}, ").items()
        },
    )
    return Section(
        "dmc",
        "Cheetah and walker",
        body,
        list(_claims(evaluations, results)),
        list(failures(evaluations, phases["embed"])),
        opening=_opening(cards, evaluations),
        about="The other controllers with videos and returns, all runs, and published agents.",
    )


def _opening(cards: Mapping[Key, Markup], evaluations: Sequence[Evaluation]) -> Markup:
    """Videos of the newest controller of every task, next to each other."""
    shown = newest(evaluations)
    if not shown:
        return Markup()
    found = " and ".join(_in_words(one, other_seeds(one, evaluations)) for one in shown.values())
    return render(
        "suite/opening.html",
        sentence=f"Robots plan with DCEM in a learned latent space of a learned world model: {found}.",
        cards=[cards[key] for key in shown],
        legend=LEGEND,
    )


def _in_words(one: Evaluation, others: Sequence[Evaluation]) -> str:
    failing, *elsewhere = (f"{failed(each.totals).sum()} of {len(each.totals)}" for each in (one, *others))
    seeds = f", with other seeds {' and '.join(elsewhere)}" if elsewhere else ""
    return f"{one.task} (median return {np.median(one.totals):.0f}; episodes that fail: {failing}{seeds})"


def _claims(evaluations: Sequence[Evaluation], results: Path) -> Iterator[Claim]:
    """The paper's numbers, each beside ours, and beside that of the paper's single model if there is one."""
    found = {(evaluation.task, evaluation.controller): evaluation for evaluation in evaluations}
    for (task, name), known in paper.DMC_RETURNS.items():
        for controller in (name, f"{name}{SINGLE}"):
            ours = found.get((task, controller))
            if ours is None and controller != name:
                continue
            what = f"{task}, {label_of(controller, results)}"
            claim = Claim("Control suite", what, "median return", str(known))
            if ours is not None:
                others = (other.totals for other in other_seeds(ours, evaluations))
                claim = replace(
                    claim,
                    ours=str(ours.quartiles),
                    seeds=f"{len(ours.runs)} ({len(ours.totals)} episodes)",
                    interval=ours.interval.bounds(".0f"),
                    verdict=qualified(beside(ours.interval, known.median), ours.totals, *others),
                )
            yield claim


def failures(evaluations: Sequence[Evaluation], latent: Sequence[Training]) -> Iterator[str]:
    """Sentences whose condition the numbers of all controllers and of phase 2 meet."""
    for one in evaluations:
        if one.controller in CONTROLLERS:
            yield from works_or_fails(f"{one.task}: {one.label}", one.totals)
    trainings = {one.name: one for one in latent}
    for name, offline in trainings.items():
        online = trainings.get(name.removesuffix("-offline"))
        if online is None or online is offline:
            continue
        means = [evaluated(one.curves[0], "eval_mean")[1] for one in (offline, online)]
        alone, together = (values[-1] if len(values) else np.nan for values in means)
        if alone < together / 2:
            yield (
                f"{offline.task}: a latent space that is learned offline fails, as in the paper. Its mean "
                f"return is {alone:.0f}. Online, after as many updates, it is {together:.0f}."
            )


def works_or_fails(who: str, totals: np.ndarray) -> Iterator[str]:
    """A sentence if returns (S,) have two modes, one of which has failed."""
    if (humps := two_humps(totals)) is not None and humps.fails:
        yield (
            f"{who} either works or fails. Of {len(totals)} episodes, {humps}. "
            f"The median of {np.median(totals):.0f} hides that; the mean is {totals.mean():.0f}."
        )


def _phase(name: str, results: Path, trainings: Sequence[Training]) -> dict[str, Any]:
    """Its curves, and every run in a table.

    Runs that continue others are only in the table: their environment steps do not count earlier training.
    So are those that answer a question.
    """
    command, controller = PHASES[name]
    first = name == "planet"
    shown = [one for one in trainings if not (one.aside or (first and one.goes_on))]
    measure = "eval_mean" if first else "eval_median"
    return {
        "command": command,
        "curves": _curves(shown, controller, label_of(controller, results), measure),
        "runs": named(numbers.training_rows(trainings), "task", "variant", "seed"),
    }


def _beside_others(results: Path, trainings: Sequence[Training]) -> dict[str, list[dict[str, str]]]:
    """Phase 1 and published agents at the same environment steps, by task."""
    from_scratch = [one for one in trainings if not (one.goes_on or one.aside)]
    peers = read_peers(results)
    return {task: beside_rows(group, peers, _STEPS) for task, group in by_task(from_scratch).items()}


def with_code(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Cells in backticks as the page shows code."""
    return [
        {name: code(cell.strip("`")) if cell[:1] == "`" else cell for name, cell in row.items()}
        for row in rows
    ]


def named(rows: Iterable[Mapping[str, str]], *columns: str) -> list[dict[str, str]]:
    """Rows with these columns as one, which is the title of a row's card on a narrow screen."""
    return [
        {", ".join(columns): ", ".join(row[name] for name in columns)}
        | {name: value for name, value in row.items() if name not in columns}
        for row in rows
    ]


def _curves(trainings: Sequence[Training], controller: str, label: str, measure: str) -> Markup:
    """A panel per task, a colour per variant, a line per seed."""
    panels = []
    for task, group in by_task(trainings).items():
        colors = {training.label: _COLORS[i % len(_COLORS)] for i, training in enumerate(group)}
        drawn = [
            Line(training.label, colors[training.label], *evaluated(curve, measure), thin=True)
            for training in group
            for curve in training.curves
        ]
        most = max((float(line.x.max()) for line in drawn if len(line.x)), default=0)
        if not most:
            continue
        series = [_visible(line, most / 100) for line in drawn if len(line.x)]
        known = paper.DMC_RETURNS.get((task, controller))
        rules = [Rule("the paper's median at the end", known.median)] if known else []
        chart = lines(
            f"Returns on {task}", series, Scale(0, most), _RETURNS, "environment steps", "return", rules
        )
        panels.append(part("panel", task, chart, [(color, label) for label, color in colors.items()]))
    caption = (
        f"{'Mean' if measure == 'eval_mean' else 'Median'} return of the evaluation episodes, by seed, "
        f"over environment steps. Dashed: the paper's median with {label} at the end of its training. A line "
        "ends where its run was stopped. The table has the fraction of its budget."
    )
    return part("figure", caption, panels) if panels else Markup()


def _visible(line: Line, dash: float) -> Line:
    """A line with a single point would be invisible: draw it as a dash."""
    if len(line.x) > 1:
        return line
    return replace(line, x=line.x + np.array([-dash, dash]), y=line.y.repeat(2))


def _evaluation(one: Evaluation) -> dict[str, str]:
    _, low, high = one.interval
    q1, median, q3 = one.quartiles
    known = papers(one)
    return {
        "task": one.task,
        "controller": one.label,
        "trajectories": one.sampled,
        "runs": str(len(one.runs)),
        "episodes": str(len(one.totals)),
        "median [quartiles]": f"{number(median)} [{number(q1)}–{number(q3)}]",
        "95% interval": f"[{number(low)}, {number(high)}]",
        "mean": number(one.totals.mean()),
        "bimodal": str(two_humps(one.totals) or "no"),
        "paper": f"{known.median:.0f}" if known else NOT_REPORTED.words,
    }

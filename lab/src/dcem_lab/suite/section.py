"""The section on cheetah and walker: a world model, a latent action space on it, PPO through the planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dcem_lab import paper
from dcem_lab.report.charts import Box, Line, Rule, boxes, figure, legend, lines, panel
from dcem_lab.report.html import Html, element, join, paragraph
from dcem_lab.report.markdown import by_heading, render
from dcem_lab.report.pictures import video
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import Section, Sources, not_run, provenance
from dcem_lab.report.tables import (
    NOT_REPORTED,
    NOT_RUN,
    Claim,
    Verdict,
    claims_table,
    details,
    number,
    table,
)
from dcem_lab.suite.latent_figure import latent_figure
from dcem_lab.suite.numbers import (
    CONTROLLERS,
    Evaluation,
    Training,
    evaluated,
    planning_rows,
    read_evaluations,
    read_trainings,
    training_rows,
)
from dcem_lab.suite.questions import answers, embed_rows, finetuned_rows, planet_rows, ppo_rows
from dcem_lab.suite.starts import start_rows

TRAIN, EMBED, FINETUNE, EVALUATE = (
    "dcem train planet task=cheetah-run preset=best",
    "dcem train embed from=RUN preset=best",
    "dcem train ppo from=RUN",
    "dcem eval RUN --episodes 100",
)
PLAN = "python benchmarks/planning.py --output results/dmc/planning.csv"
CLAIMS = "What the paper says about it, line by line"
_COLORS = [f"{color}{dots}" for dots in ("", " dotted") for color in ("c0", "c1", "c2", "c3", "c4", "c6")]
_RETURNS = Scale(0, 1000)
NEAR = 0.05  # an evaluation this close to a number of steps counts for it


def section(sources: Sources) -> Section:
    phases = {name: read_trainings(sources.results / name) for name in ("planet", "embed", "ppo")}
    evaluations = read_evaluations(sources.results / "dmc" / "evaluations.csv")
    claims = _claims(evaluations)
    body = join(
        paragraph(
            "A world model is learned from a task of the DeepMind control suite, and the controller plans "
            "in it. First over whole action sequences, with CEM; then in a latent action space that is "
            "learned through DCEM and needs a tenth of the samples; then PPO fine-tunes the controller "
            "through its planner.",
        ),
        element("h3", "Beside the paper"),
        claims_table(claims),
        _boxes(evaluations) if evaluations else not_run(EVALUATE),
        _all_evaluations(evaluations),
        _films(sources.results / "dmc" / "videos"),
        element("h3", "What a decision costs"),
        _planning(sources.results / "dmc"),
        element("h3", "Phase 1: world model and full CEM"),
        _phase_one(phases["planet"]) if phases["planet"] else not_run(TRAIN),
        _asked(
            planet_rows(sources.results),
            "What parts of the recipe are worth, one run each, on the cheetah.",
        ),
        element("h3", "Phase 2: a latent action space"),
        _phase("latent-dcem", phases["embed"], evaluations, EMBED),
        _asked(
            embed_rows(sources.results),
            "The paper's questions, one run each, on the cheetah; not in the chart.",
        ),
        _asked(
            start_rows(sources.results),
            "Where the walker stays down: episodes with a return below 250, by its pose at the start.",
        ),
        latent_figure(sources.results / "dmc" / "latent"),
        element("h3", "Phase 3: PPO through the planner"),
        _phase("latent-dcem-ppo", phases["ppo"], evaluations, FINETUNE),
        _asked(finetuned_rows(sources.results), "Before and after, on the same episodes."),
        _asked(
            ppo_rows(sources.results),
            "The paper's questions, 20 steps each, on the cheetah; not in the chart.",
        ),
        _line_by_line(sources.docs / "dmc.md"),
        _provenance(phases),
    )
    return Section("dmc", "Cheetah and walker", body, claims)


def _line_by_line(path: Path) -> Html | None:
    """What the paper says of it, and what was found."""
    text = by_heading(path)[1].get(CLAIMS) if path.exists() else None
    return details(CLAIMS, render(text)) if text is not None else None


def _claims(evaluations: Sequence[Evaluation]) -> list[Claim]:
    found = {(evaluation.task, evaluation.controller): evaluation for evaluation in evaluations}
    claims = []
    for (task, controller), known in paper.DMC_RETURNS.items():
        naming = "Control suite", f"{task}, {CONTROLLERS[controller]}".replace("\n", " "), "median return"
        published = f"{known.median:.0f} [{known.q1:.0f}–{known.q3:.0f}]"
        ours = found.get((task, controller))
        if ours is None:
            claims.append(Claim(*naming, published, "", "", "", NOT_RUN))
            continue
        low, high = ours.interval
        q1, median, q3 = np.percentile(ours.totals, [25, 50, 75])
        claims.append(
            Claim(
                *naming,
                published,
                f"{median:.0f} [{q1:.0f}–{q3:.0f}]",
                f"{len(ours.runs)} ({len(ours.totals)} episodes)",
                f"[{low:.0f}, {high:.0f}]",
                _verdict(median, low, high, known.median),
            )
        )
    return claims


def _verdict(median: float, low: float, high: float, known: float) -> Verdict:
    if low <= known <= high:
        return Verdict("agrees", "good")
    return Verdict("better", "good") if median > known else Verdict("worse", "bad")


def _boxes(evaluations: Sequence[Evaluation]) -> Html:
    panels = []
    for task in dict.fromkeys(evaluation.task for evaluation in evaluations):
        groups = []
        for evaluation in (e for e in evaluations if e.task == task and e.controller in CONTROLLERS):
            known = paper.DMC_RETURNS.get((task, evaluation.controller))
            pair = [Box("paper", "ink", *known)] if known else []
            groups.append((evaluation.label, [*pair, _box(evaluation)]))
        if groups:
            panels.append(panel(task, boxes(f"Returns on {task}", groups, _RETURNS, "return")))
    caption = (
        "Returns of all episodes: median, quartiles, whiskers to the last point within 1.5 interquartile "
        "ranges. The paper's boxes are its quartiles. Controllers that it does not have are in the table."
    )
    return join(legend([("ink", "paper"), ("c0", "ours")]), figure(caption, *panels))


def _box(evaluation: Evaluation) -> Box:
    totals = evaluation.totals
    q1, median, q3 = (float(value) for value in np.percentile(totals, [25, 50, 75]))
    reach = 1.5 * (q3 - q1)
    inside = totals[(totals >= q1 - reach) & (totals <= q3 + reach)]
    outside = [float(value) for value in totals if value not in inside]
    return Box("ours", "c0", q1, median, q3, (float(inside.min()), float(inside.max())), outside)


def _phase_one(trainings: Sequence[Training]) -> Html:
    """Runs that go on from others are in the table of runs alone: by environment steps they would flatter."""
    tables, anew = [], [one for one in trainings if not (one.goes_on or answers(one))]
    for task in dict.fromkeys(training.task for training in anew):
        rows = [_at_steps(training) for training in anew if training.task == task]
        rows += [
            {"agent": agent, "seeds": "published", **_by_steps(values)}
            for (at, agent), values in paper.OTHER_RETURNS.items()
            if at == task
        ]
        tables.append(table(rows, f"{task}: mean evaluation return at so many environment steps"))
    note = paragraph("Beside agents that see the same state, from their published tables:")
    return join(_curves(anew, "full-cem", "eval_mean"), _runs(trainings), note, *tables)


def _phase(
    controller: str, trainings: Sequence[Training], evaluations: Sequence[Evaluation], command: str
) -> Html:
    found = [evaluation for evaluation in evaluations if evaluation.controller == controller]
    if not found and not trainings:
        return not_run(command)
    parts = [
        f"{one.task}: median {np.median(one.totals):.0f} over {len(one.totals)} episodes, "
        f"{one.sampled} trajectories for a plan."
        for one in found
    ]
    return join(
        paragraph(" ".join(parts)) if parts else None,
        _curves([one for one in trainings if not answers(one)], controller, "eval_median"),
        _runs(trainings),
    )


def _runs(trainings: Sequence[Training]) -> Html | None:
    return table(_named(training_rows(trainings), "task", "variant", "seed")) if trainings else None


def _asked(rows: Sequence[Mapping[str, str]], caption: str) -> Html | None:
    if not rows:
        return None
    shown = [
        {name: element("code", cell.strip("`")) if cell[:1] == "`" else cell for name, cell in row.items()}
        for row in rows
    ]
    return table(shown, caption)


def _named(rows: Sequence[Mapping[str, str]], *columns: str) -> list[dict[str, str]]:
    """Rows with these columns as one, which is the title of a row's card on a narrow screen."""
    return [
        {", ".join(columns): ", ".join(row[name] for name in columns)}
        | {name: value for name, value in row.items() if name not in columns}
        for row in rows
    ]


def _curves(trainings: Sequence[Training], controller: str, measure: str) -> Html | None:
    """A panel a task, a colour a variant, a line a seed."""
    panels = []
    for task in dict.fromkeys(training.task for training in trainings):
        group = [training for training in trainings if training.task == task]
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
        panels.append(panel(task, chart, legend([(color, label) for label, color in colors.items()])))
    name = CONTROLLERS[controller].replace("\n", " ")
    caption = (
        f"{'Mean' if measure == 'eval_mean' else 'Median'} return of the evaluation episodes, seed by seed, "
        f"over environment steps. Dashed: the paper's median with {name} at the end of its training. A line "
        "ends where its run was stopped; the table says how much of its budget that was."
    )
    return figure(caption, *panels) if panels else None


def _visible(line: Line, dash: float) -> Line:
    """A line of a single point would not be seen: it becomes a dash."""
    if len(line.x) > 1:
        return line
    return replace(line, x=line.x + np.array([-dash, dash]), y=line.y.repeat(2))


def _at_steps(training: Training) -> dict[str, str]:
    """The mean over the seeds that came so far; where that is not all of them, it is said."""
    seeds = len(training.curves)
    row = {"agent": training.label, "seeds": str(seeds)}
    for steps in paper.OTHER_STEPS:
        at = []
        for curve in training.curves:
            x, y = evaluated(curve, "eval_mean")
            distance = np.abs(x - steps)
            at += [y[distance.argmin()]] if (distance <= NEAR * steps).any() else []
        reached = "" if len(at) == seeds else f" ({len(at)} of {seeds} seeds)"
        row[f"{steps:,}"] = f"{np.mean(at):.0f}{reached}" if at else "–"
    return row


def _by_steps(values: Sequence[float]) -> dict[str, str]:
    return {f"{steps:,}": f"{value:.0f}" for steps, value in zip(paper.OTHER_STEPS, values, strict=True)}


def _planning(folder: Path) -> Html:
    rows = planning_rows(folder)
    if not rows:
        return not_run(PLAN)
    note = (
        "Time of one plan, from the model's states to actions, for one robot and for 16 at once. "
        "Trajectories are N × T, each imagined by every member of the model's ensemble. The return is that "
        "of the episodes above, where plans of this size were played."
    )
    machines = "; ".join(dict.fromkeys(row.pop("measured on") for row in rows))
    return join(paragraph(note), table(_named(rows, "task", "controller"), f"Measured on {machines}."))


def _all_evaluations(evaluations: Sequence[Evaluation]) -> Html | None:
    if not evaluations:
        return None
    rows = []
    for one in evaluations:
        low, high = one.interval
        q1, median, q3 = np.percentile(one.totals, [25, 50, 75])
        known = paper.DMC_RETURNS.get((one.task, one.controller))
        rows.append(
            {
                "task": one.task,
                "controller": one.label.replace("\n", " "),
                "trajectories": one.sampled,
                "runs": str(len(one.runs)),
                "episodes": str(len(one.totals)),
                "median [quartiles]": f"{number(median)} [{number(q1)}–{number(q3)}]",
                "95% interval": f"[{number(low)}, {number(high)}]",
                "paper": f"{known.median:.0f}" if known else NOT_REPORTED.words,
            }
        )
    return details("Every controller that was evaluated", table(rows))


def _films(folder: Path) -> Html | None:
    films = [video(path, path.stem.replace("_", " ")) for path in sorted(folder.glob("*.mp4"))]
    return element("div", *films, class_="films") if films else None


def _provenance(phases: dict[str, list[Training]]) -> Html | None:
    records = {
        f"phase {phase}, {training.task}, {training.preset}, {seed}": record
        for phase, trainings in enumerate(phases.values(), 1)
        for training in trainings
        for seed, record in training.records.items()
    }
    return provenance(records) if records else None

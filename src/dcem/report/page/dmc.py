"""The section on cheetah and walker: a world model, a latent action space on it, PPO through the planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dcem.report import paper
from dcem.report.page.charts import Box, Line, Rule, boxes, figure, legend, lines, panel
from dcem.report.page.html import Html, element, join, paragraph
from dcem.report.page.pictures import video
from dcem.report.page.scales import Scale
from dcem.report.page.sources import Section, Sources, not_run, provenance, read_json, read_rows
from dcem.report.page.tables import (
    NOT_REPORTED,
    NOT_RUN,
    Claim,
    Verdict,
    claims_table,
    details,
    number,
    table,
)

TASKS = ("cheetah-run", "walker-walk")
CONTROLLERS = {"full-cem": "full CEM", "latent-dcem": "latent DCEM", "latent-dcem-ppo": "latent DCEM\n+ PPO"}
TRAIN, EMBED, FINETUNE, EVALUATE = (
    "dcem train planet task=cheetah-run preset=best",
    "dcem train embed from=RUN",
    "dcem train ppo from=RUN",
    "dcem eval RUN --episodes 100",
)
_COLORS = ("c0", "c1", "c2", "c3", "c4", "c5")
_RETURNS = Scale(0, 1000)
_RESAMPLES = 1000
NEAR = 0.05  # an evaluation this close to a number of steps counts for it


@dataclass(frozen=True)
class Training:
    """The world model's runs of one task and preset: a record and a curve for each seed."""

    task: str
    preset: str
    records: dict[str, dict[str, Any]]
    curves: list[dict[str, np.ndarray]]

    @property
    def label(self) -> str:
        return f"ours, {self.preset}"


@dataclass(frozen=True)
class Evaluation:
    """The returns of one controller on one task, by run."""

    task: str
    controller: str
    runs: dict[str, np.ndarray]
    sampled: str  # trajectories for one plan

    @property
    def totals(self) -> np.ndarray:
        return np.concatenate(list(self.runs.values()))

    @property
    def label(self) -> str:
        return CONTROLLERS.get(self.controller, self.controller)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Of the median, 95%: runs are drawn anew, then episodes of each."""
        random, runs = np.random.default_rng(0), list(self.runs.values())
        medians = [
            np.median(np.concatenate([random.choice(runs[i], len(runs[i])) for i in chosen]))
            for chosen in random.integers(len(runs), size=(_RESAMPLES, len(runs)))
        ]
        low, high = np.percentile(medians, [2.5, 97.5])
        return float(low), float(high)


def section(sources: Sources) -> Section:
    trainings = read_trainings(sources.results / "planet")
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
        _films(sources.results / "dmc" / "videos"),
        element("h3", "Phase 1: world model and full CEM"),
        _phase_one(trainings) if trainings else not_run(TRAIN),
        element("h3", "Phase 2: a latent action space"),
        _phase("latent-dcem", evaluations, EMBED),
        element("h3", "Phase 3: PPO through the planner"),
        _phase("latent-dcem-ppo", evaluations, FINETUNE),
        _all_evaluations(evaluations),
        _provenance(trainings),
    )
    return Section("dmc", "Cheetah and walker", body, claims)


def read_trainings(root: Path) -> list[Training]:
    """results/planet/<task>-<preset>/seed<k>/{run.json, curve.csv}"""
    found = []
    for folder in sorted(root.glob("*")):
        paths = sorted(path for path in folder.glob("seed*") if (path / "curve.csv").exists())
        if not paths:
            continue
        task = next((task for task in TASKS if folder.name.startswith(task)), folder.name)
        records = {path.name: _record(path / "run.json") for path in paths}
        curves = [_columns(path / "curve.csv") for path in paths]
        found.append(Training(task, folder.name.removeprefix(task).strip("-") or "default", records, curves))
    return found


def read_evaluations(path: Path) -> list[Evaluation]:
    """By task and controller, those of the paper first."""
    if not path.exists():
        return []
    totals: dict[tuple[str, str], dict[str, list[float]]] = {}
    sampled = {}
    for row in read_rows(path):
        key = row["task"].replace(".", "-"), row["controller"]
        totals.setdefault(key, {}).setdefault(row["run"], []).append(float(row["total"]))
        sampled[key] = f"{int(row['samples']) * int(row['iterations']):,}"
    order = list(CONTROLLERS)
    found = [
        Evaluation(*key, {run: np.array(values) for run, values in runs.items()}, sampled[key])
        for key, runs in totals.items()
    ]
    return sorted(
        found, key=lambda e: (e.task, order.index(e.controller) if e.controller in order else len(order))
    )


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
        for evaluation in (e for e in evaluations if e.task == task):
            known = paper.DMC_RETURNS.get((task, evaluation.controller))
            pair = [Box("paper", "ink", *known)] if known else []
            groups.append((evaluation.label, [*pair, _box(evaluation)]))
        panels.append(panel(task, boxes(f"Returns on {task}", groups, _RETURNS, "return")))
    caption = (
        "Returns of all episodes: median, quartiles, whiskers to the last point within 1.5 interquartile "
        "ranges. The paper's boxes are its quartiles."
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
    panels, tables = [], []
    for task in dict.fromkeys(training.task for training in trainings):
        group = [training for training in trainings if training.task == task]
        series = []
        for training, color in zip(group, _COLORS, strict=False):
            for curve in training.curves:
                x, y = _evaluated(curve, "eval_mean")
                series.append(Line(training.label, color, x, y, thin=True))
        most = max(float(line.x.max()) for line in series)
        known = paper.DMC_RETURNS.get((task, "full-cem"))
        rules = [Rule("the paper's median at the end", known.median)] if known else []
        chart = lines(
            f"Returns on {task}", series, Scale(0, most), _RETURNS, "environment steps", "return", rules
        )
        labels = [(color, training.label) for training, color in zip(group, _COLORS, strict=False)]
        panels.append(panel(task, chart, legend(labels)))
        rows = [_at_steps(training) for training in group]
        rows += [
            {"agent": agent, "seeds": "published", **_by_steps(values)}
            for (at, agent), values in paper.OTHER_RETURNS.items()
            if at == task
        ]
        tables.append(table(rows, f"{task}: mean evaluation return at so many environment steps"))
    caption = (
        "Mean return of the evaluation episodes, seed by seed, over environment steps. "
        "Dashed: the paper's median with full CEM at the end of its training."
    )
    note = paragraph("Beside agents that see the same state, from their published tables:")
    return join(figure(caption, *panels), note, *tables)


def _at_steps(training: Training) -> dict[str, str]:
    values = []
    for steps in paper.OTHER_STEPS:
        at = []
        for curve in training.curves:
            x, y = _evaluated(curve, "eval_mean")
            nearest = np.abs(x - steps).argmin()
            at += [float(y[nearest])] if abs(x[nearest] - steps) <= NEAR * steps else []
        values.append(sum(at) / len(at) if len(at) == len(training.curves) else None)
    return {"agent": training.label, "seeds": str(len(training.curves)), **_by_steps(values)}


def _by_steps(values: Sequence[float | None]) -> dict[str, str]:
    return {
        f"{steps:,}": "–" if value is None else f"{value:.0f}"
        for steps, value in zip(paper.OTHER_STEPS, values, strict=True)
    }


def _phase(controller: str, evaluations: Sequence[Evaluation], command: str) -> Html:
    found = [evaluation for evaluation in evaluations if evaluation.controller == controller]
    if not found:
        return not_run(command)
    parts = [
        f"{one.task}: median {np.median(one.totals):.0f} over {len(one.totals)} episodes, "
        f"{one.sampled} trajectories for a plan."
        for one in found
    ]
    return paragraph(" ".join(parts))


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


def _provenance(trainings: Sequence[Training]) -> Html | None:
    records = {
        f"{training.task}, {training.preset}, {seed}": record
        for training in trainings
        for seed, record in training.records.items()
    }
    return provenance(records) if records else None


def _record(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    found = read_json(path)
    return found if "command" in found else next(iter(found.values()), {})


def _columns(path: Path) -> dict[str, np.ndarray]:
    rows = read_rows(path)
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in (rows[0] if rows else {})}


def _evaluated(curve: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Environment steps and values, where there was an evaluation."""
    there = np.isfinite(curve[name])
    return curve["env_steps"][there], curve[name][there]

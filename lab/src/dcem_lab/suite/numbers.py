"""The numbers of cheetah and walker: training curves, evaluation episodes, and the time of a decision."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dcem_lab import paper
from dcem_lab.report.formats import counted, duration, machine_of, number
from dcem_lab.report.sources import grouped, read_columns, read_json, rows_if_any, seeds_of
from dcem_lab.report.statistics import Interval, bootstrap, failed, two_humps

TASKS, CONTROLLERS = (tuple(dict.fromkeys(names)) for names in zip(*paper.DMC_RETURNS, strict=True))
"""Those that the paper has returns of."""

SINGLE = "-single"
"""Ends the name of a controller whose model is the paper's, and not an ensemble."""

QUESTIONS = "questions.json"
DEFAULT, CPU, SUITE = "default", "cpu", "suite"
NO_EVALUATION = "no evaluation"
NO_DEVICE = "not run"
_DEVICES = {"cpu": "CPU", "cuda": "GPU"}
_STATES = {"ms_1": "one state", "ms_16": "16 states"}
_RESAMPLES = 1000


@dataclass(frozen=True)
class Training:
    """The runs of one phase, task and variant: a record and a curve for each seed."""

    task: str
    preset: str
    records: dict[str, dict[str, Any]]
    curves: list[dict[str, np.ndarray]]
    aside: bool = False  # it answers a question, and is in no chart

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.task}-{self.preset}"

    @property
    def label(self) -> str:
        return "ours" if self.preset == DEFAULT else f"ours, {self.preset}"

    @property
    def goes_on(self) -> bool:
        """Whether it started from another run's weights, so that its steps are not the total."""
        return any(record.get("config", {}).get("source") for record in self.records.values())


@dataclass(frozen=True)
class Evaluation:
    """The returns of one controller on one task, by run."""

    task: str
    controller: str
    runs: dict[str, np.ndarray]
    sampled: str  # trajectories for one plan
    label: str

    @property
    def totals(self) -> np.ndarray:
        return np.concatenate(list(self.runs.values()))

    @property
    def quartiles(self) -> paper.Quartiles:
        return paper.Quartiles(*np.percentile(self.totals, [25, 50, 75]).tolist())

    @cached_property
    def interval(self) -> Interval:
        """Bootstrap interval of the median: resample episodes; of several runs, runs and then episodes."""
        runs = list(self.runs.values())
        if len(runs) == 1:
            return bootstrap(runs[0], np.median, _RESAMPLES)
        random = np.random.default_rng(0)

        def median(chosen: np.ndarray) -> float:
            drawn = [random.choice(runs[i], len(runs[i])) for i in chosen.astype(int)]
            return float(np.median(np.concatenate(drawn)))

        return bootstrap(np.arange(len(runs)), median, _RESAMPLES)._replace(mean=np.median(self.totals))


def read_trainings(root: Path) -> list[Training]:
    """results/<phase>/<task>-<variant>/seed<k>/{run.json, curve.csv}"""
    lists = (asked for asked in read_questions(root.parent).values() if isinstance(asked, list))
    aside = {one["run"] for asked in lists for one in asked if "run" in one and not one.get("charted")}
    found = []
    for folder in sorted(root.glob("*")):
        seeds = seeds_of(folder)
        if not seeds:
            continue
        curves = [read_columns(seed / "curve.csv") for seed in seeds]
        written = (read_json(seed / "run.json") for seed in seeds)
        records = {
            seed.name: _caught_up(record, curve)
            for seed, record, curve in zip(seeds, written, curves, strict=True)
        }
        trained = [record.get("config", {}).get("task") for record in records.values()]
        named = [task for task in (*TASKS, *trained) if task and folder.name.startswith(task)]
        task = max(named, key=len, default=folder.name)
        preset = folder.name.removeprefix(task).strip("-") or DEFAULT
        found.append(Training(task, preset, records, curves, aside=f"{root.name}/{folder.name}" in aside))
    return found


def _caught_up(record: dict[str, Any], curve: dict[str, np.ndarray]) -> dict[str, Any]:
    """As far as the curve, if the run was cut off before it wrote its record again."""
    if record.get("status") != "running" or record.get("step"):
        return record
    share = float(curve["env_steps"][-1]) / record["config"]["loop"]["env_steps"]
    return record | {"step": int(share * record["steps"]), "wall_seconds": float(curve["seconds"][-1])}


def by_task(trainings: Sequence[Training]) -> dict[str, list[Training]]:
    return {task: [one for one in trainings if one.task == task] for task in (one.task for one in trainings)}


def records_of(trainings: Sequence[Training], prefix: str = "") -> dict[str, dict[str, Any]]:
    """Of every run, by its name on a page."""
    return {
        f"{prefix}{one.task}, {one.preset}, {seed}": record
        for one in trainings
        for seed, record in one.records.items()
    }


def main_trainings(results: Path, preset: str = DEFAULT) -> list[Training]:
    """Of agents with a value: one per task, without runs that answer a question or continue others."""
    found = read_trainings(results / "agent")
    return [one for one in found if one.preset == preset and not (one.aside or one.goes_on)]


def read_questions(results: Path) -> dict[str, Any]:
    """Lists of what was asked and which runs answer, and how controllers are called."""
    path = results / QUESTIONS
    return read_json(path) if path.exists() else {}


def label_of(controller: str, results: Path) -> str:
    return read_questions(results).get("controllers", {}).get(controller, controller)


def evaluated(curve: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Environment steps and values, where there was an evaluation."""
    there = np.isfinite(curve[name])
    return curve["env_steps"][there], curve[name][there]


def training_rows(trainings: Sequence[Training]) -> Iterator[dict[str, str]]:
    """Every run: how far it came, what it reached, and how long that took."""
    latent = any("decoder_cost" in curve for training in trainings for curve in training.curves)
    for training in trainings:
        for (seed, record), curve in zip(training.records.items(), training.curves, strict=True):
            steps, median = evaluated(curve, "eval_median")
            _, mean = evaluated(curve, "eval_mean")
            newest = best = NO_EVALUATION
            if len(median):
                newest = f"{mean[-1]:.0f}, {median[-1]:.0f}"
                best = f"{median.max():.0f}, {steps[median.argmax()]:,.0f}"
            yield {
                "task": training.task,
                "variant": training.preset,
                "seed": seed.removeprefix("seed"),
                "environment steps": f"{curve['env_steps'][-1]:,.0f}",
                "of its budget": f"{record['step'] / record['steps']:.0%}" if "steps" in record else "",
                "last mean, median": newest,
                "best median, at": best,
                **({"predicted return": _promised(curve)} if latent else {}),
                "wall time": duration(record.get("wall_seconds") or float(curve["seconds"][-1])),
                "machine": machine_of(record).split(",")[0],
            }


def _promised(curve: dict[str, np.ndarray]) -> str:
    """The return that the model predicted for plans in the latest decoder update."""
    costs = curve.get("decoder_cost", np.empty(0))
    known = costs[np.isfinite(costs)]
    return f"{-known[-1]:.1f}" if len(known) else ""


def read_evaluations(results: Path, folder: str = "dmc") -> list[Evaluation]:
    """By task and controller, those of the paper first."""
    rows = rows_if_any(results / folder / "evaluations.csv")
    found = []
    for (task, controller), episodes in grouped(rows, "task", "controller").items():
        runs = {
            run: np.array([float(row["total"]) for row in played])
            for (run,), played in grouped(episodes, "run").items()
        }
        sampled = int(episodes[-1]["samples"]) * int(episodes[-1]["iterations"])
        label = label_of(controller, results)
        found.append(Evaluation(task.replace(".", "-"), controller, runs, f"{sampled:,}", label))
    return sorted(found, key=lambda e: (e.task, [*CONTROLLERS, e.controller].index(e.controller)))


def episode_rows(evaluations: Sequence[Evaluation]) -> list[dict[str, str]]:
    """Every run, with the returns of its episodes."""
    return [
        {
            "task": one.task,
            "controller": one.label,
            "seed": seed_of(run),
            "episodes": str(len(totals)),
            "mean": f"{totals.mean():.0f}",
            "median": f"{np.median(totals):.0f}",
            "lowest": f"{totals.min():.0f}",
            "failed": str(failed(totals).sum()),
            "bimodal": str(two_humps(totals) or "no"),
            "trajectories per plan": one.sampled,
        }
        for one in evaluations
        for run, totals in one.runs.items()
    ]


def read_episodes(results: Path, folder: str) -> dict[tuple[str, ...], dict[str, float]]:
    """The returns of every task, controller and run, by the seed of the episode."""
    rows = grouped(rows_if_any(results / folder / "evaluations.csv"), "task", "controller", "run")
    return {key: {row["episode_seed"]: float(row["total"]) for row in found} for key, found in rows.items()}


def seed_of(run: str) -> str:
    """
    >>> seed_of("cheetah-run-value/seed2")
    '2'
    """
    return run.rpartition("/")[2].removeprefix("seed")


def papers(one: Evaluation) -> paper.Quartiles | None:
    """The paper's return of such a controller."""
    return paper.DMC_RETURNS.get((one.task, one.controller.removesuffix(SINGLE)))


def other_seeds(one: Evaluation, found: Sequence[Evaluation]) -> list[Evaluation]:
    """Of the phases that learn a controller; those of phase 1 were stopped at different steps."""
    if one.controller == "full-cem":
        return []
    name = re.compile(rf"{re.escape(one.controller)}-seed-\d+")
    return [other for other in found if other.task == one.task and name.fullmatch(other.controller)]


def planning_rows(results: Path) -> list[dict[str, str]]:
    """The time of one plan on a CPU and on a GPU, and the return of such plans."""
    evaluations = (*read_evaluations(results), *read_evaluations(results, "agent"))
    returns = {(e.task, e.controller, e.sampled): f"{np.median(e.totals):.0f}" for e in evaluations}
    rows = rows_if_any(results / "dmc" / "planning.csv")
    plans = {
        (task, controller, f"{int(sampled):,}"): {row["kind"]: row for row in found}
        for (task, controller, sampled), found in grouped(rows, "task", "controller", "trajectories").items()
    }
    return [
        {
            "task": task,
            "controller": label_of(controller, results),
            "trajectories per plan": trajectories,
            "median return": returns.get((task, controller, trajectories), NO_EVALUATION),
            **{
                f"{name}, {states}": f"{number(float(measured[kind][ms]))} ms"
                if kind in measured
                else NO_DEVICE
                for kind, name in _DEVICES.items()
                for ms, states in _STATES.items()
            },
            "measured on": ", ".join(_device(row) for row in measured.values()),
        }
        for (task, controller, trajectories), measured in plans.items()
    ]


def _device(row: dict[str, str]) -> str:
    if row["kind"] != "cpu":
        return row["device"]
    return f"{row['device']} ({counted(int(row['threads']), 'thread')}, load before {row['load']})"

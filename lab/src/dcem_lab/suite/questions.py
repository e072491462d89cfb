"""What the phases leave to ask, most of it in the paper, and what the runs that answer say.

Questions and runs are in results/questions.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dcem_lab.report.sources import read_columns, seeds_of
from dcem_lab.report.statistics import bootstrap
from dcem_lab.suite.beside import at_steps, returns_of
from dcem_lab.suite.numbers import evaluated, read_episodes, read_questions

PRESET = "paper-preset"
_COMPARED = 200_000  # environment steps
_ASKED = (100_000, 250_000, 600_000)  # those of agents with a value; some runs end at the second
_UNCHANGED, _NEWEST = 3, 5  # PPO steps, of the episodes that it explores in
_RESAMPLES = 10_000

Rows = list[dict[str, str]]


def planet_rows(results: Path) -> Rows:
    """The return of phase 1 early on, where all runs have an evaluation."""
    return [
        asked | {f"mean after {_COMPARED / 1e6:.1f}M steps": mean, "median": median}
        for asked, curve in _answers(results, "planet")
        for mean, median in _early(curve)
    ]


def preset_rows(results: Path) -> Rows:
    """Which parts of `best` improve the paper's preset: the early return of phase 1, a row per change."""
    rows: dict[str, dict[str, str]] = {}
    for asked, curve in _answers(results, PRESET):
        seed = asked.pop("seed")
        row = rows.setdefault(asked["question"], asked)
        for mean, median in _early(curve):
            values = {"seeds": seed, "mean": mean, "median": median}
            row |= {name: f"{row[name]}, {new}" if name in row else new for name, new in values.items()}
    return list(rows.values())


def _early(curve: dict[str, np.ndarray]) -> Iterator[tuple[str, str]]:
    """The mean and the median return of phase 1 early on, if there was an evaluation."""
    (steps, mean), (_, median) = (evaluated(curve, name) for name in ("eval_mean", "eval_median"))
    for i in np.flatnonzero(steps == _COMPARED):
        yield f"{mean[i]:.0f}", f"{median[i]:.0f}"


def apart(results: Path) -> set[str]:
    """Runs of phase 1 that answer for the paper's preset alone; they have a page of their own."""
    asked = read_questions(results)
    preset = {one["run"] for one in asked.get(PRESET, []) if not one.get("charted")}
    return {run.removeprefix("planet/") for run in preset - {one["run"] for one in asked.get("planet", [])}}


def embed_rows(results: Path) -> Rows:
    """The mean return at every evaluation of phase 2."""
    return [
        asked
        | {
            f"mean after {steps / 1e6:.1f}M steps": f"{mean:.0f}"
            for steps, mean in zip(*evaluated(curve, "eval_mean"), strict=True)
        }
        for asked, curve in _answers(results, "embed")
    ]


def ppo_rows(results: Path) -> Iterator[dict[str, str]]:
    """The mean return before and after phase 3, and in its training episodes."""
    for asked, curve in _answers(results, "ppo"):
        _, mean = evaluated(curve, "eval_mean")
        _, exploring = evaluated(curve, "return")
        yield asked | {
            "mean before": f"{mean[0]:.0f}",
            "mean after": f"{mean[-1]:.0f}",
            f"exploring, first {_UNCHANGED} steps": f"{exploring[:_UNCHANGED].mean():.0f}",
            f"exploring, last {_NEWEST} steps": f"{exploring[-_NEWEST:].mean():.0f}",
        }


def agent_rows(results: Path, what: str = "agent", steps: tuple[int, ...] = _ASKED) -> Rows:
    """The mean return of agents with a value, early on and at the end."""
    return [asked | at_steps(returns_of([curve], steps), steps) for asked, curve in _answers(results, what)]


def _answers(results: Path, what: str) -> Iterator[tuple[dict[str, str], dict[str, np.ndarray]]]:
    """Every question that has been answered, with the curve of each run that did."""
    for asked in read_questions(results).get(what, []):
        for seed in seeds_of(results / asked["run"]):
            yield (
                {
                    "question": asked["question"],
                    "changed": f"`{asked['changed']}`" if asked["changed"] else "nothing",
                    "seed": seed.name.removeprefix("seed"),
                },
                read_columns(seed / "curve.csv"),
            )


def finetuned_rows(results: Path) -> Iterator[dict[str, str]]:
    """Phase 3's gain on episodes with the same starts, run by run."""
    totals: dict[tuple[str, str], dict[str, float]] = {}
    for (task, controller, _), episodes in read_episodes(results, "dmc").items():
        totals.setdefault((task, controller), {}).update(episodes)
    for asked in read_questions(results).get("finetuned", []):
        first, last = (totals.get((asked["task"], asked[when]), {}) for when in ("before", "after"))
        both = sorted(first.keys() & last.keys())
        if both:
            before, after = (np.array([episodes[seed] for seed in both]) for episodes in (first, last))
            _, low, high = bootstrap(after - before, np.mean, _RESAMPLES)
            yield {
                "task": asked["task"],
                "training": asked["training"],
                "episodes": str(len(both)),
                "median before": f"{np.median(before):.0f}",
                "after PPO": f"{np.median(after):.0f}",
                "mean before": f"{before.mean():.0f}",
                "mean after PPO": f"{after.mean():.0f}",
                "95% of the gain in the mean": f"{low:+.0f} to {high:+.0f}",
            }

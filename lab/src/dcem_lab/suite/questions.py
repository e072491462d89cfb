"""What the phases leave to ask, most of it in the paper, and the runs on cheetah and walker that answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from dcem_lab.report.sources import read_rows
from dcem_lab.suite.numbers import TASKS, Training, evaluated, read_trainings

PLANET = {
    "best": ("to compare with", ""),
    "best-1-member": ("one model instead of three?", "model.members=1 model.pessimism=0"),
    "best-no-pessimism": ("three, without pessimism?", "model.pessimism=0"),
    "best-mse": ("squared errors?", "model.loss=mse"),
    "best-no-average": ("no moving average?", "average=0"),
    "best-256-units": ("256 units instead of 200?", "model.hidden=256 model.width=256"),
    "best-4-updates": ("four updates a step?", "updates_per_step=4"),
    "paper": ("none of it?", "preset=paper"),
}
EMBED = {
    "T5-tau0.2-replay": ("to compare with", ""),
    "T3-tau0.2-replay": ("three iterations instead of five?", "planner.iterations=3"),
    "T10-tau0.2-replay": ("ten?", "planner.iterations=10"),
    "T5-tau0.2-no-replay": ("delete phase 1's replay?", "keep_replay=false seed_episodes=16"),
    "T5-tau0.2-replay-new-model": ("re-initialise the model?", "keep_model=false updates_per_step=2"),
    "T5-tau0.2-replay-offline": ("learn offline?", "offline=true"),
}
PPO = {
    "20-steps": ("to compare with", ""),
    "20-steps-decoder": ("the decoder alone?", "parts=[decoder]"),
    "20-steps-reward": ("the reward alone?", "parts=[reward]"),
    "20-steps-1-pass": ("one pass instead of two?", "passes=1"),
    "20-steps-4-passes": ("four?", "passes=4"),
    "20-steps-lr1e-5": ("the paper's smaller rate?", "lr=1e-5"),
    "20-steps-learned-std": ("a learned variance?", "learn_std=true"),
    "20-steps-again": ("to compare with, again", ""),
    "20-steps-transition": ("the transition alone?", "parts=[transition] backward=checkpoint"),
    "20-steps-likelihood": ("the model's likelihood, too?", "likelihood=1"),
}
"""Variants of trainings on the first task: the question, and the setting that was changed."""

FINETUNED = {
    ("cheetah-run", "latent-dcem", "latent-dcem-ppo"): "T = 5, τ = 0.2, seed 0",
    ("cheetah-run", "latent-dcem-seed-1", "latent-dcem-ppo-seed-1"): "the same, seed 1",
    ("cheetah-run", "latent-dcem-seed-2", "latent-dcem-ppo-seed-2"): "the same, seed 2",
    ("cheetah-run", "latent-dcem-tau-1", "latent-dcem-tau-1-ppo"): "τ = 1, seed 0",
    ("cheetah-run", "full-cem-tau-0.2", "full-cem-ppo"): "full CEM, τ = 0.2",
    ("walker-walk", "latent-dcem-half-update", "latent-dcem-ppo"): "half a model update a step, seed 0",
    ("walker-walk", "latent-dcem-half-update-seed-1", "latent-dcem-ppo-seed-1"): "the same, seed 1",
    ("walker-walk", "latent-dcem-half-update-seed-2", "latent-dcem-ppo-seed-2"): "the same, seed 2",
    ("walker-walk", "latent-dcem", "latent-dcem-ppo-two-updates"): "two updates, with replay, seed 0",
    ("walker-walk", "latent-dcem-seed-1", "latent-dcem-ppo-two-updates-seed-1"): "two, without, seed 1",
    ("walker-walk", "latent-dcem-conditioned", "latent-dcem-ppo-conditioned"): "half, conditioned decoder",
}
"""Controllers of the evaluations before and after phase 3."""

_ASIDE = (PLANET | EMBED | PPO).keys() - {"best", "paper"}  # these two stand for themselves, too
_COMPARED = 200_000  # environment steps
_UNCHANGED, _NEWEST = 3, 5  # PPO steps, of the episodes that it explores in
_RESAMPLES = 10_000

Rows = list[dict[str, str]]


def answers(training: Training) -> bool:
    """Whether it changes one setting of another, to answer a question."""
    return training.task == TASKS[0] and training.preset in _ASIDE


def planet_rows(results: Path) -> Rows:
    """The return of phase 1 early on, where all runs have an evaluation."""
    rows = []
    for asked, curve in _answers(results / "planet", PLANET):
        (steps, mean), (_, median) = (evaluated(curve, name) for name in ("eval_mean", "eval_median"))
        for i in np.flatnonzero(steps == _COMPARED):
            after = f"mean after {_COMPARED / 1e6:.1f}M steps"
            rows.append(asked | {after: f"{mean[i]:.0f}", "median": f"{median[i]:.0f}"})
    return rows


def embed_rows(results: Path) -> Rows:
    """The mean return at every evaluation of phase 2."""
    return [
        asked
        | {
            f"mean after {steps / 1e6:.1f}M steps": f"{mean:.0f}"
            for steps, mean in zip(*evaluated(curve, "eval_mean"), strict=True)
        }
        for asked, curve in _answers(results / "embed", EMBED)
    ]


def ppo_rows(results: Path) -> Rows:
    """The mean return before and after phase 3, and in the episodes that it learned from."""
    rows = []
    for asked, curve in _answers(results / "ppo", PPO):
        _, mean = evaluated(curve, "eval_mean")
        _, exploring = evaluated(curve, "return")
        rows.append(
            asked
            | {
                "mean before": f"{mean[0]:.0f}",
                "mean after": f"{mean[-1]:.0f}",
                f"exploring, first {_UNCHANGED} steps": f"{exploring[:_UNCHANGED].mean():.0f}",
                f"exploring, last {_NEWEST} steps": f"{exploring[-_NEWEST:].mean():.0f}",
            }
        )
    return rows


def _answers(
    folder: Path, questions: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[dict[str, str], dict[str, np.ndarray]]]:
    """Every question that has been answered, with the curve of the run that did."""
    found = {one.preset: one for one in read_trainings(folder) if one.task == TASKS[0]}
    for variant, (question, changed) in questions.items():
        if variant in found:
            for seed, curve in zip(found[variant].records, found[variant].curves, strict=True):
                yield (
                    {
                        "question": question,
                        "changed": f"`{changed}`" if changed else "nothing",
                        "seed": seed.removeprefix("seed"),
                    },
                    curve,
                )


def finetuned_rows(results: Path) -> Rows:
    """Phase 3's gain on episodes that begin alike, training by training."""
    path = results / "dmc" / "evaluations.csv"
    totals: dict[tuple[str, str], dict[str, float]] = {}
    for row in read_rows(path) if path.exists() else []:
        episodes = totals.setdefault((row["task"], row["controller"]), {})
        episodes[row["episode_seed"]] = float(row["total"])
    rows = []
    for (task, *names), what in FINETUNED.items():
        first, last = (totals.get((task, name), {}) for name in names)
        both = sorted(first.keys() & last.keys())
        if both:
            before, after = (np.array([episodes[seed] for seed in both]) for episodes in (first, last))
            low, high = _interval(after - before)
            rows.append(
                {
                    "task": task,
                    "training": what,
                    "episodes": str(len(both)),
                    "median before": f"{np.median(before):.0f}",
                    "after PPO": f"{np.median(after):.0f}",
                    "mean before": f"{before.mean():.0f}",
                    "mean after PPO": f"{after.mean():.0f}",
                    "95% of the gain in the mean": f"{low:+.0f} to {high:+.0f}",
                }
            )
    return rows


def _interval(x: np.ndarray) -> tuple[float, float]:
    """95% bootstrap interval of the mean."""
    means = np.random.default_rng(0).choice(x, (_RESAMPLES, len(x))).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)

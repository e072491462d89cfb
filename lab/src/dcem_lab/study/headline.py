"""The README's table: ours beside the paper's and its peers', every number from a file of results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dcem_lab import paper
from dcem_lab.cartpole import numbers as cartpole_numbers
from dcem_lab.regression import numbers as regression
from dcem_lab.report.documents import NOT_MEASURED
from dcem_lab.report.sources import Sources, read_json, read_rows
from dcem_lab.suite.numbers import (
    CONTROLLERS,
    TASKS,
    Evaluation,
    Training,
    label_of,
    other_seeds,
    read_evaluations,
    read_trainings,
)

PRESET = "best"  # the training whose curve stands in for an evaluation that is still to come
_YARDSTICK = 1_000_000  # environment steps at which other agents are quoted
_RELEASED = "released code, as published"

# Tables of the benchmark: what is measured, the case, the column, ours, and peers with the names to print.
_SPEED = (
    ("lml", "soft top-k of 1024 rows of 1000, with gradients", "1024×1000, k=100", "forward+backward ms",
     "dcem.lml", {"theseus LML": "theseus-ai"}),
    ("dcem", "DCEM solve (20 dimensions, N=100, T=10), with gradients", "quadratic, B=1",
     "forward+backward ms", "dcem.DCEM", {"theseus DCEM": "theseus-ai"}),
    ("hard", "CEM solve (the same with τ = 0)", "quadratic, B=1", "forward ms", "dcem.DCEM, τ=0",
     {"theseus DCEM, temp=None": "theseus-ai", "evotorch CEM": "evotorch"}),
    ("control", "MPPI plan (20 steps, 10 refinements of 100)", "double integrator", "forward ms", "dcem.MPPI",
     {"pytorch-mppi": "pytorch-mppi"}),
)  # fmt: skip
# Of the GPU's benchmark: the same, where a case has one column of times.
_GPU_SPEED = (
    ("lml", "soft top-k of 4096 rows of 1000, with gradients", "4096×1000, k=100, forward+backward",
     "dcem, captured", {"torch.topk, captured": "torch.topk", _RELEASED: "released code"}),
    ("dcem", "DCEM solve (as above), with gradients", "B=1, forward+backward", "dcem, captured, one graph",
     {_RELEASED: "released code"}),
    ("plan", "CEM plan of 10,000 trajectories in a world model of one member", "B=1, N=1000",
     "fused, captured", {"float32, captured": "the same in plain PyTorch, captured"}),
)  # fmt: skip


def rows(sources: Sources) -> list[dict[str, str]]:
    """One row a claim, with the columns of the table."""
    return [
        *_regression(sources.results),
        *_cartpole(sources.results),
        *_control_suite(sources.results),
        *_speed(sources.benchmarks),
        *_gpu_speed(sources.gpu_benchmarks),
    ]


def _row(what: str, ours: str, known: str = "", peers: str = "") -> dict[str, str]:
    return {"": what, "ours": ours, "the paper": known, "others": peers}


def _regression(results: Path) -> Iterator[dict[str, str]]:
    what = "regression, training error of DCEM (median of 3 seeds)"
    try:
        found = {variant.name: variant for variant in regression.read_variants(results)}
        errors = [np.median(v.error_at(v.config["n_iters"])) for v in (found["dcem"], found["gd"])]
    except (FileNotFoundError, KeyError):
        yield _row(what, NOT_MEASURED, regression.PAPER_MSE["dcem"])
        return
    yield _row(
        what, f"{errors[0]:.1e}", regression.PAPER_MSE["dcem"], f"unrolled gradient descent {errors[1]:.1e}"
    )


def _cartpole(results: Path) -> Iterator[dict[str, str]]:
    what, known = (
        "cartpole, improvement over CEM (8 latent dimensions, τ = 1)",
        paper.CARTPOLE_FACTORS[8, 1.0],
    )
    try:
        study = cartpole_numbers.read(results)
    except FileNotFoundError:
        yield _row(what, NOT_MEASURED, f"{known:.2f}")
        return
    found = {(row["latent dimension"], row["τ"]): row for row in cartpole_numbers.factors(study)}
    factor, pca = float(found["8", "1"]["ours"]), study.expert("pca-2") / paper.CARTPOLE_EXPERT
    yield _row(what, f"{factor:.2f}", f"{known:.2f}", f"PCA of expert plans {pca:.2f}")


def _control_suite(results: Path) -> Iterator[dict[str, str]]:
    evaluated = {(e.task, e.controller): e for e in read_evaluations(results)}
    trainings = read_trainings(results / "planet")
    for task in TASKS:
        for controller in CONTROLLERS:
            ours, one = NOT_MEASURED, evaluated.get((task, controller))
            if one is not None:
                ours = f"{np.median(one.totals):.0f}" + _other_seeds(one, list(evaluated.values()))
            elif controller == "full-cem":
                ours = next((_so_far(t) for t in trainings if (t.task, t.preset) == (task, PRESET)), ours)
            known = f"{paper.DMC_RETURNS[task, controller].median:.0f}"
            peers = _agents(task) if controller == "full-cem" else ""
            yield _row(f"{task}, {label_of(controller, results)}, median return", ours, known, peers)


def _other_seeds(one: Evaluation, evaluated: Sequence[Evaluation]) -> str:
    others = [f"{np.median(other.totals):.0f}" for other in other_seeds(one, evaluated)]
    return f" (other seed{'s' * (len(others) > 1)}: {', '.join(others)})" if others else ""


def _so_far(training: Training) -> str:
    """The newest evaluation while training, where the 100 episodes are still to be played."""
    newest = []
    for curve in training.curves:
        there = np.isfinite(curve["eval_median"])
        newest.append((curve["eval_median"][there][-1], curve["env_steps"][there][-1]))
    median, steps = np.median([m for m, _ in newest]), min(steps for _, steps in newest)
    seeds = f"{len(newest)} seed{'s' * (len(newest) > 1)}"
    return f"{median:.0f} so far ({steps / 1e6:.1f}M steps, {seeds})"


def _agents(task: str) -> str:
    """Published means of other agents at a million steps."""
    at = paper.OTHER_STEPS.index(_YARDSTICK)
    return ", ".join(f"{who} {x[at]}" for (where, who), x in paper.OTHER_RETURNS.items() if where == task)


def _speed(folder: Path) -> Iterator[dict[str, str]]:
    for name, what, case, column, ours, peers in _SPEED:
        yield _timed(what, _times(folder / f"{name}.csv", case, "contender", column), ours, peers)


def _gpu_speed(folder: Path) -> Iterator[dict[str, str]]:
    if not (folder / "run.json").exists():
        return
    gpu = read_json(folder / "run.json")["gpu"]
    for name, what, case, ours, peers in _GPU_SPEED:
        yield _timed(f"{gpu}: {what}", _times(folder / f"{name}.csv", case, "what", "ms"), ours, peers)


def _times(path: Path, case: str, contender: str, column: str) -> dict[str, str]:
    """Milliseconds by contender, of those that have been measured."""
    measured = read_rows(path) if path.exists() else []
    return {row[contender]: row[column] for row in measured if row["case"] == case and row[column]}


def _timed(what: str, times: dict[str, str], ours: str, peers: dict[str, str]) -> dict[str, str]:
    shown = [f"{label} {_ms(times[peer])}" for peer, label in peers.items() if peer in times]
    return _row(what, _ms(times[ours]) if ours in times else NOT_MEASURED, "", ", ".join(shown))


def _ms(text: str) -> str:
    """
    >>> _ms("0.03779"), _ms("8.3761"), _ms("201.7")
    ('0.038 ms', '8.4 ms', '202 ms')
    """
    value = float(text)
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value:.2g} ms"

"""The README's table: comparisons with the paper or a peer, every number from a result file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dcem_lab import paper
from dcem_lab.cartpole import numbers as cartpole_numbers
from dcem_lab.regression import numbers as regression
from dcem_lab.report.documents import NOT_MEASURED
from dcem_lab.report.formats import counted
from dcem_lab.report.sources import Sources, read_json, rows_if_any
from dcem_lab.study import optimisers, peers
from dcem_lab.suite.beside import read_peers, standings
from dcem_lab.suite.numbers import SINGLE, main_trainings, read_evaluations

_ROBOTS = {"cheetah-run": "Cheetah", "walker-walk": "Walker"}
_CONTROLLER = "latent-dcem-ppo"


def rows(sources: Sources) -> list[dict[str, str]]:
    """One row per finding, with the columns of the table; the pages have the others."""
    return [
        *_regression(sources.results),
        *_cartpole(sources.results),
        *_control_suite(sources.results),
        *_with_a_value(sources.results),
        *_optimisers(sources),
        *_layers(sources),
        *_speed(sources.benchmarks),
    ]


def _row(what: str, here: str, beside: str, source: str) -> dict[str, str]:
    name = "benchmark" if "benchmarks" in source else Path(source).stem.replace("-", " ")
    return {"": what, "here": here, "to compare with": beside, "from": f"[{name}]({source})"}


def _regression(results: Path) -> Iterator[dict[str, str]]:
    here = beside = NOT_MEASURED
    try:
        found = {variant.name: variant for variant in regression.read_variants(results)}
        here, beside = (f"{found[name].at_minimum.mean():.0%}" for name in ("dcem", "gd"))
    except (FileNotFoundError, KeyError):
        pass
    what = "Energy-based regression: predictions at a minimum of the learned energy"
    yield _row(what, here, f"unrolled gradient descent: {beside}", "lab/docs/regression.md")


def _cartpole(results: Path) -> Iterator[dict[str, str]]:
    here, known = NOT_MEASURED, paper.CARTPOLE_FACTORS[8, 1.0]
    try:
        factors = cartpole_numbers.factors(cartpole_numbers.read(results))
        found = {(row["latent dimension"], row["τ"]): float(row["ours"]) for row in factors}
        here = f"{found['8', '1']:.2f} times"
    except FileNotFoundError:
        pass
    what = "Cartpole swing-up in a learned latent space: improvement over CEM with three times the samples"
    yield _row(what, here, f"the paper: {known:.2f} times", "lab/docs/cartpole.md")


def _control_suite(results: Path) -> Iterator[dict[str, str]]:
    evaluated = {(e.task, e.controller): e for e in read_evaluations(results)}
    for task, robot in _ROBOTS.items():
        single = evaluated.get((task, f"full-cem{SINGLE}"))
        rows = [("CEM in the paper's single model", "full-cem", [*single.runs.values()])] if single else []
        others = [name for at, name in evaluated if at == task and name.startswith(f"{_CONTROLLER}-seed-")]
        names = [name for name in (_CONTROLLER, *others) if (task, name) in evaluated]
        tuned = [evaluated[task, name].totals for name in names]
        rows.append(("DCEM in a learned latent space, fine-tuned", _CONTROLLER, tuned))
        for what, controller, totals in rows:
            yield _row(
                f"{robot}, {what}: return over 100 episodes",
                _returns(totals) or NOT_MEASURED,
                f"the paper: median {paper.DMC_RETURNS[task, controller].median:.0f}",
                "lab/docs/control-suite.md",
            )


def _with_a_value(results: Path) -> Iterator[dict[str, str]]:
    """Means over the seeds at the end of training, and published agents after the same number of steps."""
    ours = standings(main_trainings(results), read_peers(results))
    found = {training.task: (at, returns, known) for training, at, returns, known in ours}
    here, beside = [], []
    for task, robot in _ROBOTS.items():
        if task in found:
            at, returns, known = found[task]
            here.append(f"{robot} after {at:,} steps: {', '.join(f'{mean:.0f}' for mean in returns)}")
            names = dict.fromkeys([*known][:1] + ["TD-MPC2"] * ("TD-MPC2" in known))
            if names:
                beside.append(f"{robot}: " + ", ".join(f"{agent} {known[agent]:.0f}" for agent in names))
    yield _row(
        "Plans that end in a learned value: mean return, seed by seed",
        "; ".join(here) or NOT_MEASURED,
        "; ".join(beside) or NOT_MEASURED,
        "lab/docs/agents-with-a-value.md",
    )


def _returns(found: Sequence[np.ndarray]) -> str:
    """Medians and means of the episodes of every seed."""
    if not found:
        return ""
    medians, means = (", ".join(f"{of(x):.0f}" for x in found) for of in (np.median, np.mean))
    if len(found) == 1:
        return f"median {medians}, mean {means}"
    return f"{len(found)} seeds: medians {medians}; means {means}"


def _optimisers(sources: Sources) -> Iterator[dict[str, str]]:
    found = optimisers.shares(sources)
    here, beside, restarted = (
        found[name, "10", "1000"]["all"] if (name, "10", "1000") in found else NOT_MEASURED
        for name in ("ipop", "pycma CMA-ES", "pycma IPOP")
    )
    yield _row(
        "BBOB benchmark, 10 dimensions, 10,000 evaluations, `IPOP` solver: fraction of targets reached",
        here,
        f"pycma: {beside}, with restarts {restarted}",
        "benchmarks/optimisers/README.md",
    )


def _layers(sources: Sources) -> Iterator[dict[str, str]]:
    found = {row["contender"]: row["found"] for row in peers.layers(sources, "pendulum")}
    here, *beside = (
        f"{float(found[name]):.0%}" if found.get(name) else NOT_MEASURED
        for name in ("DCEM, implicit", "TorchOpt Adam, unrolled", "mpc.pytorch", "theseus LM, unrolled")
    )
    yield _row(
        "Argmin layer, ten torques through a network: lowest minima found",
        here,
        f"TorchOpt: {beside[0]}, mpc.pytorch: {beside[1]}, theseus: {beside[2]}",
        "docs/layers.md",
    )


def _speed(folder: Path) -> Iterator[dict[str, str]]:
    rows = [row for row in rows_if_any(folder / "dcem.csv") if row["case"] == "quadratic, B=1"]
    measured = {row["contender"]: row["forward+backward ms"] for row in rows}
    times = {contender: _ms(ms) for contender, ms in measured.items() if ms}
    run = read_json(folder / "run.json") if (folder / "run.json").exists() else None
    where = _where(run.get("tables", {}).get("dcem", run)) if run else "CPU"
    yield _row(
        f"Time of one solve with gradients (20 dimensions, {where})",
        times.get("dcem.DCEM", NOT_MEASURED),
        f"theseus-ai: {times.get('theseus DCEM', NOT_MEASURED)}",
        "benchmarks/results/tables.md",
    )


def _where(run: dict[str, Any]) -> str:
    return f"{counted(run['threads'], 'CPU thread')}, version {run['versions']['ours']['dcem']}"


def _ms(text: str) -> str:
    """
    >>> _ms("0.03779"), _ms("8.3761"), _ms("201.7")
    ('0.038 ms', '8.4 ms', '202 ms')
    """
    value = float(text)
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value:.2g} ms"

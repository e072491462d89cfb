"""Evaluating what was trained: any run of an experiment with a controller, and the weights that ship."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from scipy import stats

from dcem_lab import pretrained
from dcem_lab.pretrained import FOLDER
from dcem_lab.report.statistics import bootstrap
from dcem_lab.runs.files import write_csv
from dcem_lab.suite.agents import Controller, Episode, PlannerConfig
from dcem_lab.suite.envs.dmc import ControlEnv
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.source import load_source, read_stored

_RESAMPLES = 10_000


class Trained(NamedTuple):
    """A controller and the task it was trained for."""

    task: str
    planner: PlannerConfig
    controller: Controller
    environment: Callable[..., gymnasium.Env]


def load(
    run_or_name: str | Path,
    device: torch.device,
    snapshot: str = "best",
    full_space: bool = False,
    **planner: Any,
) -> Trained:
    """The controller of a run folder or of weights that ship, its planner changed as told (`samples=100`).

    With `full_space` a latent one goes without its decoder, and plans as much as the paper's full CEM.
    `snapshot` is explained at `dcem_lab.suite.source.load_source`.
    """
    source = load_source(run_or_name, snapshot)
    theirs, decoder = source.planner, source.decoder
    if full_space:
        if decoder is None:
            raise ValueError(
                f"full_space must be left out for {run_or_name}: it is for latent controllers, "
                "and this one has no decoder"
            )
        theirs, decoder = PlannerConfig(horizon=theirs.horizon, dtype=theirs.dtype), None
    if device.type == "cpu":
        planner = {"dtype": "float32", **planner}  # half precision is slow there
    changed = dataclasses.replace(theirs, **planner)
    if decoder is not None and changed.horizon != decoder.horizon:
        raise ValueError(
            f"horizon must be {decoder.horizon}, that of the decoder of {run_or_name}, got {changed.horizon}"
        )
    model = source.model.requires_grad_(False).to(device)
    if decoder is not None:
        decoder.requires_grad_(False).to(device)
    return Trained(
        source.task, changed, Controller(model, changed, decoder=decoder), source.pieces.environment()
    )


def ship(run: str | Path, name: str, folder: Path | str = FOLDER, snapshot: str = "best") -> Path:
    """Keep the weights of a run under a name that `load` takes; returns the file."""
    stored = read_stored(run, snapshot)
    described = {"experiment": stored.experiment, "config": stored.config, "pieces": stored.pieces}
    return pretrained.save(name, described, stored.weights, folder)


def play(
    trained: Trained,
    episodes: int,
    seed: int,
    n_envs: int,
    n_workers: int = 0,
    each_step: Callable[[], None] = lambda: None,
) -> Iterator[Episode]:
    """Episodes from the seeds `seed`, `seed + 1`, …, `n_envs` at once, as `Controller.play` plays them."""
    with closing(ParallelEnv(trained.environment, n_envs, n_workers)) as envs:
        yield from trained.controller.play(envs, range(seed, seed + episodes), each_step)


def steps_to_play(trained: Trained, episodes: int, n_envs: int) -> int | None:
    """How many steps of all environments that takes; None for a task without a time limit."""
    with closing(trained.environment()) as env:
        task = env.unwrapped
        assert isinstance(task, ControlEnv)
        if task.episode_actions is None:
            return None
        return math.ceil(episodes / n_envs) * task.episode_actions


def statistics(returns: Sequence[float]) -> dict[str, float]:
    """Mean, median, quartiles, and the interquartile mean with a 95% bootstrap interval.

    >>> statistics([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 50.0])["iqm"]
    3.5
    """
    x = np.asarray(returns)
    q1, median, q3 = np.percentile(x, [25, 50, 75])
    iqm = bootstrap(x, interquartile_mean, _RESAMPLES)
    figures = {
        "episodes": len(x),
        "mean": x.mean(),
        "std": x.std(),
        "median": median,
        "q1": q1,
        "q3": q3,
        "iqm": iqm.mean,
        "iqm_low": iqm.low,
        "iqm_high": iqm.high,
        "min": x.min(),
        "max": x.max(),
    }
    return {name: float(value) for name, value in figures.items()}


def interquartile_mean(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean, the lowest and the highest ⌊n / 4⌋ of n left out."""
    return stats.trim_mean(x, 0.25, axis=axis)


def write_episodes(path: Path, episodes: Sequence[Episode]) -> None:
    """A line an episode."""
    write_csv(path, ["seed", "return", "length"], episodes)

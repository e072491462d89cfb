"""Evaluation of trained controllers: episodes, their statistics, and a line for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from dcem_lab.report.statistics import bootstrap, interquartile_mean
from dcem_lab.runs import require
from dcem_lab.runs.files import write_csv
from dcem_lab.suite import trained
from dcem_lab.suite.agents import Episode
from dcem_lab.suite.envs.dmc import probe
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.trained import Trained
from dcem_lab.suite.untrained import with_new_decoder

_RESAMPLES = 10_000


def load(
    run_or_name: str | Path,
    device: torch.device,
    snapshot: str = "best",
    full_space: bool = False,
    new_decoder: int | None = None,
    **planner: Any,
) -> Trained:
    """`dcem_lab.suite.trained.load`, on that device and with frozen weights.

    With ``new_decoder``, a seed, it plans in the latent space of an untrained decoder.
    """
    if device.type == "cpu":
        planner = {"dtype": "float32", **planner}  # half precision is slow there
    if new_decoder is None:
        found = trained.load(run_or_name, snapshot, full_space, **planner)
    else:
        require(not full_space, "new_decoder", new_decoder, "left out with full_space, which has no decoder")
        found = with_new_decoder(
            trained.load(run_or_name, snapshot), new_decoder, str(run_or_name), **planner
        )
    found = found.to(device)
    for network in found.networks.values():
        network.requires_grad_(False)
    return found


def play(
    trained: Trained,
    episodes: int,
    seed: int,
    n_envs: int,
    n_workers: int = 0,
    each_step: Callable[[], None] = lambda: None,
    environment: Callable[..., gymnasium.Env] | None = None,
) -> Iterator[Episode]:
    """Episodes from the seeds `seed`, `seed + 1`, …, `n_envs` at once, as `Controller.play` plays them.

    `environment` makes the environments, if not those of the task.
    """
    with closing(ParallelEnv(environment or trained.environment(), n_envs, n_workers)) as envs:
        yield from trained.controller().play(envs, range(seed, seed + episodes), each_step)


def steps_to_play(trained: Trained, episodes: int, n_envs: int) -> int | None:
    """How many steps of all environments that takes; None for a task without a time limit."""
    actions = probe(trained.environment()).episode_actions
    return None if actions is None else math.ceil(episodes / n_envs) * actions


def statistics(returns: Sequence[float]) -> dict[str, float]:
    """Mean, median, quartiles, and the interquartile mean with a 95% bootstrap interval.

    >>> statistics([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 50.0])["iqm"]
    3.5
    """
    x = np.asarray(returns)
    q1, median, q3 = np.percentile(x, [25, 50, 75])
    iqm = bootstrap(x, interquartile_mean, _RESAMPLES)
    metrics = {
        "episodes": len(x), "mean": x.mean(), "std": x.std(), "median": median, "q1": q1, "q3": q3,
        "iqm": iqm.mean, "iqm_low": iqm.low, "iqm_high": iqm.high, "min": x.min(), "max": x.max(),
    }  # fmt: skip
    return {name: float(value) for name, value in metrics.items()}


def write_episodes(path: Path, episodes: Sequence[Episode]) -> None:
    """A line per episode."""
    write_csv(path, ["seed", "return", "length"], episodes)

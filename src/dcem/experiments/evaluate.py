"""Evaluating what was trained: any run of an experiment with a controller, and the weights that ship.

Such an experiment has, beside what all have (`dcem.experiments`):

- `environment(config)`: a function that makes one environment, with `render_mode` if given;
- `weights(tree)`: the weights in a checkpoint's tree;
- `controller(config, weights, device)`: a `dcem.agents.Controller`;
- a field `evaluation` in its Config, the planner that is evaluated.
"""

from __future__ import annotations

import csv
import dataclasses
import enum
import io
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from dcem import experiments, pretrained
from dcem.agents import Controller, Episode
from dcem.envs.vector import ParallelEnv
from dcem.pretrained.hub import FOLDER
from dcem.runs import load_checkpoint, read_record
from dcem.runs.files import write_bytes
from dcem.runs.record import RECORD

_RESAMPLES = 10_000
_CONFIDENCE = 0.95


class Trained(NamedTuple):
    """A controller and the task it was trained for."""

    config: Any
    controller: Controller
    environment: Callable[..., gymnasium.Env]


def load(run_or_name: str | Path, device: torch.device, **planner: int | str) -> Trained:
    """The controller of a run folder or of weights that ship, its planner changed as told (`samples=100`)."""
    name, values, weights = _stored(run_or_name)
    module: Any = experiments.load(name)
    config = _from_json(module.Config, values)
    if device.type == "cpu":
        planner = {"dtype": "float32", **planner}  # half precision is slow there
    config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, **planner))
    return Trained(config, module.controller(config, weights, device), module.environment(config))


def ship(run: str | Path, name: str, folder: Path | str = FOLDER) -> Path:
    """Keep the weights of a run under a name that `load` takes; returns the file."""
    experiment, config, weights = _stored(run)
    return pretrained.save(name, {"experiment": experiment, "config": config}, weights, folder)


def play(trained: Trained, episodes: int, seed: int, n_envs: int, n_workers: int = 0) -> Iterator[Episode]:
    """Episodes from the seeds `seed`, `seed + 1`, …, `n_envs` at once."""
    with closing(ParallelEnv(trained.environment, n_envs, n_workers)) as envs:
        yield from trained.controller.play(envs, range(seed, seed + episodes))


def statistics(returns: Sequence[float]) -> dict[str, float]:
    """Mean, median, quartiles, and the interquartile mean with a 95% bootstrap interval.

    >>> statistics([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 50.0])["iqm"]
    3.5
    """
    x = np.asarray(returns)
    q1, median, q3 = np.percentile(x, [25, 50, 75])
    resampled = np.random.default_rng(0).choice(x, (_RESAMPLES, len(x)))
    tail = 100 * (1 - _CONFIDENCE) / 2
    low, high = np.percentile(interquartile_mean(resampled), [tail, 100 - tail])
    figures = {
        "episodes": len(x),
        "mean": x.mean(),
        "std": x.std(),
        "median": median,
        "q1": q1,
        "q3": q3,
        "iqm": interquartile_mean(x),
        "iqm_low": low,
        "iqm_high": high,
        "min": x.min(),
        "max": x.max(),
    }
    return {name: float(value) for name, value in figures.items()}


def interquartile_mean(x: np.ndarray) -> np.ndarray:
    """The mean over the last dimension (..., n), the lowest and the highest ⌊n / 4⌋ left out."""
    cut = x.shape[-1] // 4
    return np.sort(x, axis=-1)[..., cut : x.shape[-1] - cut].mean(axis=-1)


def write_csv(path: Path, episodes: Sequence[Episode]) -> None:
    """A line an episode: seed, return, length."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["seed", "return", "length"])
    writer.writerows(episodes)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.getvalue().encode())


def _stored(run_or_name: str | Path) -> tuple[str, dict[str, Any], dict[str, torch.Tensor]]:
    """Experiment, config as JSON, weights."""
    if (Path(run_or_name) / RECORD).exists():
        record = read_record(run_or_name)
        module: Any = experiments.load(record["experiment"])
        weights = getattr(module, "weights", None)
        if weights is None:
            raise ValueError(
                f"{run_or_name} must be a run with a controller, got one of {record['experiment']}"
            )
        return record["experiment"], record["config"], weights(load_checkpoint(run_or_name).tree)
    if Path(run_or_name).exists():
        raise ValueError(f"{run_or_name} must be a run folder or a shipped model, but it has no {RECORD}")
    entry, weights = pretrained.load(str(run_or_name))
    if not hasattr(experiments.load(entry["experiment"]), "weights"):
        raise ValueError(
            f"{run_or_name} must be a controller with an environment, got one of {entry['experiment']}"
        )
    return entry["experiment"], entry["config"], weights


def _from_json(kind: Any, values: dict[str, Any]) -> Any:
    """The dataclass that `dcem.runs.config.to_json` turned into these values."""
    hints = typing.get_type_hints(kind)
    return kind(**{name: _value(hints[name], value) for name, value in values.items()})


def _value(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return _from_json(hint, value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint[value]
    return tuple(value) if isinstance(value, list) else value

"""Costs of cartpole controllers, compared on the same states and over several draws of noise.

The best validation cost of a training is the lowest of many, all with the same states and noise, so it is
biased. A score uses noise that was never used for selection, on the validation states and on new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, get_type_hints

import torch
from torch import Generator, Tensor

from dcem import MPC, Decoder
from dcem.systems.cartpole import Cartpole
from dcem_lab import pretrained
from dcem_lab.cartpole.train import validation_states
from dcem_lab.report.sources import read_rows
from dcem_lab.runs.files import write_csv

FRESH_SEED = 1_000_000  # of the first new states, far from the seeds of trainings
NOISE_SEED = 2_000_000

CostOf = Callable[[Tensor, Generator], Tensor]
"""(states (B, 5), generator) -> the cost (B,) of what the controller plans from each."""


class Score(NamedTuple):
    """The mean cost of a controller over some states; `trajectories` are sampled per plan."""

    controller: str
    states: str  # 'validation', used for model selection in training, or 'fresh'
    draw: int
    trajectories: int
    cost: float


@torch.no_grad()
def scores(name: str, cost_of: CostOf, trajectories: int, draws: int, count: int = 100) -> Iterator[Score]:
    """Scores on `count` validation states and on as many new ones, each with `draws` draws of noise.

    Draw i has the same new states for every controller.
    """
    for kind in ("validation", "fresh"):
        for i in range(draws):
            random = Generator().manual_seed(FRESH_SEED + i)
            fresh = Cartpole.initial_states(count, generator=random)
            states = validation_states(count) if kind == "validation" else fresh
            cost = cost_of(states, Generator().manual_seed(NOISE_SEED + i))
            yield Score(name, kind, i, trajectories, cost.mean().item())


def plan_scores(name: str, mpc: MPC, draws: int, count: int = 100) -> Iterator[Score]:
    """Scores of what a controller plans."""

    def cost_of(states: Tensor, generator: Generator) -> Tensor:
        cost = mpc(states, generator=generator).cost
        assert cost is not None
        return cost

    return scores(name, cost_of, trajectories(mpc), draws, count)


def trajectories(mpc: MPC) -> int:
    """The number of trajectories sampled per plan."""
    return int(mpc.solver.n_samples * mpc.solver.n_iters)


def load_decoder(name: str, folder: Path | str) -> Decoder:
    """A decoder that a training has saved, by its name in the run's folder of decoders."""
    settings, weights = pretrained.load(name, folder)
    decoder = Decoder(**settings)
    decoder.load_state_dict(weights)
    return decoder


def write_scores(path: Path | str, rows: Iterable[Score]) -> Path:
    """A CSV with one line per score, sorted, replacing earlier lines of the same controllers."""
    path, new = Path(path), list(rows)
    names = {row.controller for row in new}
    kept = [row for row in read_scores(path) if row.controller not in names] if path.exists() else []
    write_csv(path, Score._fields, sorted(kept + new))
    return path


def read_scores(path: Path | str) -> list[Score]:
    kinds = get_type_hints(Score)
    return [Score(*(kind(row[name]) for name, kind in kinds.items())) for row in read_rows(Path(path))]

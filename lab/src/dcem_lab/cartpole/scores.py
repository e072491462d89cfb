"""What controllers of the cartpole cost, compared on the same states and over several draws of noise.

The best validation cost of a training is the lowest of many, all on the same states with the same noise: it
flatters. A score draws noise that was never used to choose, on the validation states and on fresh ones.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from dcem import MPC, Decoder
from dcem.systems.cartpole import Cartpole
from dcem_lab import pretrained
from dcem_lab.cartpole.train import Config, Member, controller, validation_states
from dcem_lab.runs.files import write_csv

FRESH_SEED = 1_000_000  # of the first fresh states, far from the seeds of trainings
NOISE_SEED = 2_000_000

CostOf = Callable[[Tensor, Generator], Tensor]
"""(states (B, 5), generator) -> the cost (B,) of what the controller plans from each."""


class Score(NamedTuple):
    """The mean cost of a controller over some states; `trajectories` are sampled for each of them."""

    controller: str
    states: str  # 'validation': those that trainings choose by, or 'fresh'
    draw: int
    trajectories: int
    cost: float


@torch.no_grad()
def scores(name: str, cost_of: CostOf, trajectories: int, draws: int, count: int = 100) -> Iterator[Score]:
    """Scores on `count` validation states and on as many fresh ones, each with `draws` draws of noise.

    Draw i has the same fresh states for every controller.
    """
    for kind in ("validation", "fresh"):
        for i in range(draws):
            random = Generator().manual_seed(FRESH_SEED + i)
            fresh = Cartpole.initial_states(count, generator=random)
            states = validation_states(count) if kind == "validation" else fresh
            cost = cost_of(states, Generator().manual_seed(NOISE_SEED + i))
            yield Score(name, kind, i, trajectories, cost.mean().item())


def planned_cost(mpc: MPC) -> CostOf:
    """What the plans of a controller cost."""

    def cost_of(states: Tensor, generator: Generator) -> Tensor:
        cost = mpc(states, generator=generator).cost
        assert cost is not None
        return cost

    return cost_of


def load_decoder(name: str, folder: Path | str = pretrained.FOLDER) -> Decoder:
    """A decoder saved under a name; 'cartpole-2', 'cartpole-8' and 'cartpole-16' ship."""
    settings, weights = pretrained.load(name, folder)
    decoder = Decoder(**settings)
    decoder.load_state_dict(weights)
    return decoder


def score_decoders(folder: Path | str, members: Sequence[Member], draws: int = 8) -> Iterator[Score]:
    """Scores of the best decoders of trainings, from the folder `decoders` of a run."""
    config = Config(compile=False, device="cpu")
    for member in members:
        mpc = controller(load_decoder(f"{member.name}-best", folder), [member.tau], config)
        yield from scores(member.name, planned_cost(mpc), config.n_samples * config.n_iters, draws)


def write_scores(path: Path | str, rows: Iterable[Score]) -> Path:
    """A CSV with a line a score, sorted, in place of the lines it had for the same controllers."""
    path, new = Path(path), list(rows)
    names = {row.controller for row in new}
    kept = [row for row in read_scores(path) if row.controller not in names] if path.exists() else []
    write_csv(path, Score._fields, sorted(kept + new))
    return path


def read_scores(path: Path | str) -> list[Score]:
    rows = csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines())
    return [
        Score(
            row["controller"],
            row["states"],
            int(row["draw"]),
            int(row["trajectories"]),
            float(row["cost"]),
        )
        for row in rows
    ]

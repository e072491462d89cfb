"""A slice of a controller's latent action space, as CSVs: predicted returns over it, actions decoded in it.

One episode is played, and the first two principal directions d₁, d₂ of all its plans ẑ are kept. The slice of
a moment is the plane through that moment's plan along them,

    z(a, b) = ẑ + (a − ⟨ẑ, d₁⟩) d₁ + (b − ⟨ẑ, d₂⟩) d₂,

so that a and b mean the same at every moment: zero is the middle of the planner's first samples, and a plan
of the episode lies at (⟨ẑ, d₁⟩, ⟨ẑ, d₂⟩). `dcem_lab.suite.latent_figure` draws from the files alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from dcem import MPC
from dcem_lab.runs.files import write_csv
from dcem_lab.runs.record import recorded
from dcem_lab.suite.agents.controller import on_device, step_environments
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.trained import Trained, load

MOMENTS = (0, 25, 150)  # steps: the cheetah stands, speeds up, is well on its way
SPAN = 3.0  # first standard deviations from the middle of the slice to its sides
FINE, COARSE = 41, 5  # points along a side, of the returns and of the decoded actions
SEED = 3_000_000  # the first episode of `dcem eval`


class Played(NamedTuple):
    """An episode of T steps, as its planner saw it."""

    states: Tensor  # (T, s), of the model
    plans: Tensor  # (T, d), the ẑ
    returns: Tensor  # (T,), that the model predicts for them
    total: float  # what the environment paid


def write(
    run_or_name: str | Path,
    folder: Path,
    seed: int = SEED,
    moments: Sequence[int] = MOMENTS,
    fine: int = FINE,
) -> Path:
    """Write surface.csv, actions.csv, path.csv and, last, the record run.json; returns their folder."""
    with recorded(folder, __spec__.name, str(run_or_name), seed=seed) as record:
        source = load(run_or_name)
        mpc = latent_planner(source)
        if mpc.search_dim < 2:
            raise ValueError(f"the decoder's latent_dim must be at least 2 for a slice, got {mpc.search_dim}")
        episode = play(source, mpc, seed)
        if len(episode.plans) <= max(moments):
            raise ValueError(f"moments must be below the episode's {len(episode.plans)} steps, got {moments}")
        two = directions(episode.plans)
        path = episode.plans @ two.T
        span = SPAN * source.planner.sigma
        whole = grid(span, fine)
        cells = grid(span * (1 - 1 / COARSE), COARSE)  # the middles of equal cells that fill the slice
        returns, actions = [], []
        for moment in moments:
            state, plan = episode.states[moment], episode.plans[moment]
            found = -mpc.total_cost(points(plan, two, whole), state)  # as pessimistic as the planner has it
            returns += [[moment, *row] for row in torch.column_stack([whole, found]).tolist()]
            decoded = mpc.decode(points(plan, two, cells), state)
            actions += [
                [moment, *cells[cell].tolist(), t, action, decoded[cell, t, action].item()]
                for cell, t, action in np.ndindex(*decoded.shape)
            ]
        steps = torch.column_stack([path, episode.returns]).tolist()
        for name, columns, rows in (
            ("surface", ["moment", "a", "b", "return"], returns),
            ("actions", ["moment", "a", "b", "t", "action", "value"], actions),
            ("path", ["step", "a", "b", "return"], [[t, *row] for t, row in enumerate(steps)]),
        ):
            write_csv(folder / f"{name}.csv", columns, rows, digits=4)  # which keeps the files small
        record |= {
            "weights": str(run_or_name),
            "task": source.task,
            "seed": seed,
            "length": len(path),
            "total": round(episode.total, 3),
            "share": round(float(path.var(dim=0).sum() / episode.plans.var(dim=0).sum()), 4),
            "pessimism": source.model.config.pessimism,
        }
    return folder


def latent_planner(source: Trained) -> MPC:
    """What the controller plans with, on the CPU, in single precision."""
    if source.decoder is None:
        raise ValueError("the controller must have a decoder, got one that plans over action sequences")
    model, decoder = source.model.requires_grad_(False), source.decoder.requires_grad_(False)
    return source.planner.mpc(model, model, decoder)


def play(source: Trained, mpc: MPC, seed: int) -> Played:
    """One episode, as `dcem_lab.suite.agents.Controller` plays it."""
    cpu, generator = torch.device("cpu"), Generator().manual_seed(0)
    states, plans, returns, total = [], [], [], 0.0
    with closing(ParallelEnv(source.environment(), 1)) as envs:
        state, ended = source.model.initial(on_device(envs.reset(seed=[seed])[0], cpu)), False
        while not ended:
            plan = mpc(state, generator=generator)
            states.append(state[0])
            plans.append(plan.latent[0])
            returns.append(-plan.cost[0])
            transition = step_environments(envs, plan.action.numpy())
            total, ended = total + float(transition.rewards[0]), bool(transition.ended[0])
            seen = on_device(transition.next_observations, cpu)
            state = source.model.observe(state, plan.action, seen)
    return Played(torch.stack(states), torch.stack(plans), torch.stack(returns), total)


def directions(plans: Tensor) -> Tensor:
    """The first two principal directions (2, d) of plans (T, d), each with its largest number positive."""
    two = torch.linalg.svd(plans - plans.mean(dim=0), full_matrices=False).Vh[:2]
    return two * two.gather(1, two.abs().argmax(dim=1, keepdim=True)).sign()


def grid(span: float, size: int) -> Tensor:
    """Places (a, b) in [−span, span]², (size², 2)."""
    axis = torch.linspace(-span, span, size)
    return torch.cartesian_prod(axis, axis)


def points(plan: Tensor, two: Tensor, places: Tensor) -> Tensor:
    """The latent points (P, d) at places (P, 2) of the slice through a plan (d,)."""
    return plan + (places - plan @ two.T) @ two


def main() -> None:
    parser = argparse.ArgumentParser(description="A slice of a controller's latent action space, as CSVs.")
    parser.add_argument("run_or_name", help="a run folder or weights that ship, with a decoder")
    parser.add_argument("--results", type=Path, default=Path("lab/results"))
    parser.add_argument("--seed", type=int, default=SEED, help="of the episode (%(default)s)")
    given = parser.parse_args()
    folder = given.results / "dmc" / "latent" / Path(given.run_or_name).name
    print(f"wrote {write(given.run_or_name, folder, given.seed)}")


if __name__ == "__main__":
    main()

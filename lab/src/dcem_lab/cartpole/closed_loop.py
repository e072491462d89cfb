"""Cartpole controllers that replan after every step: from how many states do they swing up and stay up?

The paper's decoders were trained only on plans from initial states. Closed-loop control asks for more. The
results show how much performance they lose, and how a decoder trained on its own closed loop compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Generator

from dcem import MPC
from dcem.control import Trajectory, closed_loop
from dcem_lab.cartpole.baselines import PAPER, STRONG, expert_or_shipped
from dcem_lab.cartpole.driving import STEPS, UPRIGHT, stays_up
from dcem_lab.cartpole.scores import trajectories
from dcem_lab.cartpole.train import validation_states
from dcem_lab.runs.files import write_csv

CONTROLLERS = (STRONG, PAPER, "cartpole-2", "cartpole-8", "cartpole-16", "cartpole-closed-loop")


def drive(mpc: MPC, count: int = 100) -> Trajectory:
    """The closed loop from the states that all cartpole controllers are compared on."""
    return closed_loop(mpc, validation_states(count), STEPS, generator=Generator().manual_seed(1))


def write(folder: Path | str, controllers: Mapping[str, MPC] | None = None, count: int = 100) -> Path:
    """Write closed_loop.csv: how many of `count` random states end well, and the median cost of a step."""
    controllers = controllers or {name: expert_or_shipped(name) for name in CONTROLLERS}
    rows = []
    for name, mpc in controllers.items():
        driven = drive(mpc, count)
        rows.append([name, trajectories(mpc), count, STEPS, *figures(driven).values()])
    path = Path(folder) / "closed_loop.csv"
    write_csv(path, ["controller", "trajectories", "states", "steps", *figures(driven)], rows)
    return path


def figures(driven: Trajectory) -> dict[str, str]:
    """From how many states the pole gets up and stays up; how far the loop leaves the initial states; costs.

    Seen: the fraction of visited states within the range of initial states, which is all plain training sees.
    """
    x, v, cos, _, omega = driven.states[1:].unbind(-1)
    seen = (x.abs() <= 0.5) & (v.abs() <= 0.5) & (omega.abs() <= 1)
    return {
        "get_up": str(int((cos > UPRIGHT).any(0).sum())),
        "stay_up": str(int(stays_up(driven.states).sum())),
        "seen": f"{seen.float().mean().item():.3f}",
        "median_cost_a_step": f"{torch.median(driven.costs.mean(0)).item():.4g}",
    }

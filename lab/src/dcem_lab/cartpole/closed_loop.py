"""Cartpole controllers that replan after every step: from how many states do they swing up and stay up?

Decoders were trained on plans from first states alone. This asks for more than that, and shows what is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Generator

from dcem.control import closed_loop
from dcem.systems.cartpole import Cartpole
from dcem_lab.cartpole import shipped as cartpole_shipped
from dcem_lab.cartpole.baselines import PAPER, STRONG, expert_controller
from dcem_lab.cartpole.driving import STEPS, stays_up
from dcem_lab.runs.files import write_csv

CONTROLLERS = (STRONG, PAPER, "cartpole-2", "cartpole-8", "cartpole-16", "cartpole-closed-loop")


def write(
    results: Path | str = "lab/results/cartpole", names: Sequence[str] = CONTROLLERS, count: int = 100
) -> Path:
    """Write closed_loop.csv: how many of `count` random states end well, and the median cost of a step."""
    rows = []
    start = Cartpole.initial_states(count, generator=Generator().manual_seed(0))
    for name in names:
        expert = name.startswith("expert")
        mpc = expert_controller(name) if expert else cartpole_shipped.load(name)
        path = closed_loop(mpc, start, STEPS, generator=Generator().manual_seed(1))
        median = torch.median(path.costs.mean(0)).item()
        rows.append([name, count, STEPS, int(stays_up(path.states).sum()), f"{median:.4g}"])
    file = Path(results) / "closed_loop.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_csv(file, ["controller", "states", "steps", "stay_up", "median_cost_a_step"], rows)
    return file

"""What planning with the exact model reaches on Pendulum-v1, for learned models to be compared with.

The planner is that of the `gym` preset and the episodes are those of `dcem eval`, so that a difference in
returns is the model's:

    python lab/benchmarks/exact_pendulum.py --table lab/results/gymnasium/evaluations.csv
"""

import argparse
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from dcem import MPC
from dcem.systems.pendulum import Pendulum
from dcem_lab.suite.agents import Episode, PlannerConfig
from dcem_lab.suite.envs.dmc import make_env
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.planet import PRESETS
from dcem_lab.suite.results import add_episodes

TASK = "Pendulum-v1"
MAX_SPEED = 8.0  # Gymnasium's


class GymnasiumPendulum(Pendulum):
    """Gymnasium's pendulum: actions in [−1, 1], and a speed that is cut off."""

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """As `dcem.systems.Pendulum.step`; the angle follows the speed that was cut off."""
        cos, sin, _ = state.unbind(-1)
        following, cost = super().step(state, self.max_torque * action)
        speed = following[..., 2].clamp(-MAX_SPEED, MAX_SPEED)
        theta = torch.atan2(sin, cos) + self.dt * speed
        return torch.stack([theta.cos(), theta.sin(), speed], dim=-1), cost


@torch.no_grad()
def play(planner: PlannerConfig, seeds: range) -> list[Episode]:
    """An episode from every seed, all at once."""
    mpc = MPC(GymnasiumPendulum(), planner.horizon, solver=planner.solver(), action_dim=1)
    envs, generator = ParallelEnv(partial(make_env, TASK), len(seeds)), Generator().manual_seed(0)
    observations, _ = envs.reset(seed=list(seeds))
    totals, lengths, over = np.zeros(len(seeds)), 0, False
    while not over:
        action = mpc(torch.from_numpy(observations), generator=generator, cost=False).action
        observations, rewards, _, truncated, _ = envs.step(action.numpy())
        totals, lengths, over = totals + rewards, lengths + 1, truncated.all()
    envs.close()
    return [Episode(seed, total, lengths) for seed, total in zip(seeds, totals.tolist(), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, help="also write the episodes there, as dcem eval does")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=3_000_000, help="of the first episode")
    given = parser.parse_args()
    planner, start = PRESETS["gym"]["evaluation"], time.monotonic()
    assert isinstance(planner, PlannerConfig)
    episodes = play(planner, range(given.seed, given.seed + given.episodes))
    seconds = time.monotonic() - start
    totals = [episode.total for episode in episodes]
    print(f"mean {np.mean(totals):.1f}, median {np.median(totals):.1f} over {len(totals)} episodes")
    if given.table is not None:
        add_episodes(given.table, TASK, "exact-model", "exact", planner, None, episodes, seconds)


if __name__ == "__main__":
    main()

"""When does getting up pay? Where the walker's latent controller sits, others take over, in the simulator.

    python -m dcem_lab.suite.taking_over

writes a CSV with every reward of the next three seconds, from the start of lost episodes and from where the
controller sits, and what the controller's model predicts for the same actions. There, too, sequences of
twelve actions, as many as it plans, are searched for in the simulator itself, around those that were taken.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from dcem import DCEM, Gaussian, minimize
from dcem_lab.runs.files import write_csv
from dcem_lab.runs.record import recorded
from dcem_lab.suite.down_numbers import ITSELF
from dcem_lab.suite.envs.dmc import ControlEnv
from dcem_lab.suite.trained import Trained
from dcem_lab.suite.where_down import LOW, Moment, begin, load, lost_seeds, play

COLUMNS = ["decision", "controller", "episode_seed", "later", "reward", "promise"]
CEM: dict[str, Any] = {"full_space": True, "samples": 100, "elites": 10, "iterations": 10}
SEARCH = DCEM(
    n_samples=200, n_elite=20, n_iters=6, tau=0.0, distribution=Gaussian(sigma=0.4, bounds=(-1.0, 1.0))
)
WITH_VALUE = "agent with a value"


def takers(name: str, few: int) -> dict[str, tuple[str, dict[str, Any], int | None]]:
    """Who takes over: weights, changes to them, and on how many episodes, None for all."""
    return {
        ITSELF: (name, {}, None),
        WITH_VALUE: ("walker-walk-value", {}, None),
        "CEM, 1,000 trajectories": (name, CEM, None),
        "CEM, 10,000 trajectories": (name, {"full_space": True}, few),
    }


@torch.no_grad()
def promised(trained: Trained, state: Tensor, actions: Tensor) -> Tensor:
    """The rewards (T, E) that the model predicts for actions (T, E, m)."""
    rewards = []
    for action in actions:
        state, cost = trained.model.step(state, action)
        rewards.append(-cost)
    return torch.stack(rewards)


def simulated(env: ControlEnv, state: dict[str, Any], actions: Tensor) -> Tensor:
    """The true rewards (T,) of actions (T, m)."""
    env.set_state(state)
    return torch.tensor([env.step(action.numpy())[1] for action in actions], dtype=torch.float64)


def searched(env: ControlEnv, state: dict[str, Any], around: Tensor, seed: int) -> Tensor:
    """The actions (T, m) near those with the highest true return that CEM in the simulator finds."""

    def cost(plans: Tensor) -> Tensor:
        return -torch.stack([simulated(env, state, plan).sum() for plan in plans]).to(plans)

    generator = Generator().manual_seed(seed)
    found = minimize(cost, SEARCH, around, event_dims=2, proposals=around.unsqueeze(0), generator=generator)
    return max(found.x, around, key=lambda actions: simulated(env, state, actions).sum().item())


def write(
    name: str, controller: str, results: Path, episodes: int, decisions: int, later: int, few: int
) -> Path:
    """Rewards of all who take over, at the starts and after so many decisions; returns the folder."""
    folder, rows = results / "dmc" / "taking-over", list[list[object]]()
    options = {"controller": controller, "episodes": episodes, "decisions": decisions}
    trained, seeds = load(name), lost_seeds(results, controller)[:episodes]
    horizon = trained.planner.horizon

    def keep(who: str, moment: Moment, actions: Tensor, rewards: Tensor) -> None:
        promises = promised(trained, moment.states(trained.model)[-1], actions)
        for i, seed in enumerate(moment.seeds):
            for t, numbers in enumerate(zip(rewards[:, i].tolist(), promises[:, i].tolist(), strict=True), 1):
                rows.append([len(moment.actions), who, seed, t, *(f"{x:.3f}" for x in numbers)])
        write_csv(folder / f"{name}.csv", COLUMNS, rows)

    with recorded(folder, __spec__.name, name, **options, later=later, few=few):
        start = begin(trained, seeds)
        seat = play(trained, start, decisions)
        down = [row for row, reward in enumerate(seat.recent().tolist()) if reward < LOW]
        for moment in (seat.of(down), start):
            for who, (weights, changes, most) in takers(name, few).items():
                here = moment.of([*range(len(moment.seeds))][:most])
                past = len(here.actions)
                if most is not None and not past:
                    continue  # the most expensive one only where it matters
                played = who == ITSELF and not past
                after = seat if played else play(load(weights, **changes), here, later)
                keep(who, here, after.actions[past : past + later], after.rewards[past : past + later])
                if past and who in (ITSELF, WITH_VALUE):
                    with closing(trained.environment()()) as env:
                        states = [here.simulators["envs"][str(i)] for i in range(len(here.seeds))]
                        taken = after.actions[past : past + horizon].unbind(dim=1)
                        best = [searched(env, *pair, 0) for pair in zip(states, taken, strict=True)]
                        true = [simulated(env, *pair) for pair in zip(states, best, strict=True)]
                    keep(f"search around {who}", here, torch.stack(best, dim=1), torch.stack(true, dim=1))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="When getting up pays for the walker, as a CSV.")
    parser.add_argument("name", nargs="?", default="walker-walk-dcem", help="weights of a latent controller")
    parser.add_argument("--controller", default="latent-dcem", help="its name in the table of evaluations")
    parser.add_argument("--episodes", type=int, default=15)
    parser.add_argument("--decisions", type=int, default=100, help="until others take over")
    parser.add_argument("--later", type=int, default=60, help="decisions that they make")
    parser.add_argument("--few", type=int, default=3, help="episodes for CEM with 10,000 trajectories")
    parser.add_argument("--results", type=Path, default=Path("lab/results"))
    print(f"wrote {write(**vars(parser.parse_args()))}")


if __name__ == "__main__":
    main()

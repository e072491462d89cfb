"""When does getting up pay? Where the walker's latent controller sits, others take over, in the simulator.

    python -m dcem_lab.suite.taking_over

writes a CSV with every reward of the next seconds, from the start of lost episodes and from where the
controller sits, and what the controller's model predicts for the same actions. There, too, sequences of
twelve actions, as many as it plans, are searched for in the simulator itself, around those that were taken.
"""

from __future__ import annotations

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
from dcem_lab.suite.where_down import LOW, Moment, arguments, begin, load, lost_seeds, play

COLUMNS = ["decision", "controller", "episode_seed", "later", "reward", "promise"]
WITH_VALUE = "agent with a value"
TAKERS: dict[str, tuple[str | None, dict[str, Any]]] = {
    ITSELF: (None, {}),
    WITH_VALUE: ("walker-walk-value", {}),
    "CEM, same model": (None, {"full_space": True, "samples": 100, "elites": 10}),
}
"""Who takes over: weights, None for the same ones, and changes to how they plan."""
SEARCH = DCEM(
    n_samples=100, n_elite=10, n_iters=4, tau=0.0, distribution=Gaussian(sigma=0.4, bounds=(-1.0, 1.0))
)


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


def write(name: str, controller: str, results: Path, episodes: int, decisions: int, later: int) -> Path:
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

    with recorded(folder, __spec__.name, name, **options, later=later):
        start = begin(trained, seeds)
        seat = play(trained, start, decisions)
        down = [row for row, reward in enumerate(seat.recent().tolist()) if reward < LOW]
        for moment in (seat.of(down), start):
            past = len(moment.actions)
            for who, (weights, changes) in TAKERS.items():
                played = who == ITSELF and not past
                after = seat if played else play(load(weights or name, **changes), moment, later)
                keep(who, moment, after.actions[past : past + later], after.rewards[past : past + later])
                if past and who in (ITSELF, WITH_VALUE):
                    with closing(trained.environment()()) as env:
                        states = [moment.simulators["envs"][str(i)] for i in range(len(moment.seeds))]
                        taken = after.actions[past : past + horizon].unbind(dim=1)
                        best = [searched(env, *pair, 0) for pair in zip(states, taken, strict=True)]
                        true = [simulated(env, *pair) for pair in zip(states, best, strict=True)]
                    keep(f"search around {who}", moment, torch.stack(best, dim=1), torch.stack(true, dim=1))
    return folder


if __name__ == "__main__":
    given = arguments("When getting up pays for the walker, as a CSV.", episodes=14, decisions=100, later=48)
    print(f"wrote {write(**given)}")

"""What plans promise where the walker's latent controller stays down, as a CSV.

    python -m dcem_lab.suite.plans_when_down

It plays the first seconds of episodes that the controller loses, and then plans from the same model states
with and without the decoder, with few and with many trajectories, over several horizons. A plan's promise is
the return that the model predicts, the objective of every search and of the decoder's training. Each plan is
also refined by gradient descent over its actions: how much more does the model promise nearby?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from dcem_lab.runs.files import write_csv
from dcem_lab.runs.record import recorded
from dcem_lab.suite.agents.planner import DTYPES, fast_rollout
from dcem_lab.suite.rssm.fast.imagine import FrozenRollout
from dcem_lab.suite.trained import Trained
from dcem_lab.suite.where_down import arguments, begin, load, lost_seeds, play

MANY: dict[str, Any] = {"samples": 1000, "elites": 100, "iterations": 10}
SEARCHES: dict[str, dict[str, Any]] = {
    "latent": {},
    "latent, 10,000 trajectories": MANY,
    "actions": {"tau": 0.0},
    "actions, 10,000 trajectories": {**MANY, "tau": 0.0},
}
"""Changes to the controller's planner; actions means without the decoder."""
COLUMNS = ["episode_seed", "decision", "reward", "horizon", "search", "promise", "refined"]


@torch.no_grad()
def plans(trained: Trained, states: Tensor, horizon: int) -> dict[str, Tensor]:
    """The plan (E, H, m) of every search; plans of a decoder with a shorter horizon are repeated."""
    imagination = fast_rollout(trained.model, DTYPES[trained.planner.dtype])
    found = {}
    for name, changes in SEARCHES.items():
        latent = name.startswith("latent")
        length = trained.planner.horizon if latent else horizon
        planner = replace(trained.planner, horizon=length, **changes)
        mpc = planner.mpc(trained.model, imagination, trained.decoder if latent else None)
        actions = mpc(states, generator=Generator().manual_seed(0), cost=False).actions
        found[name] = actions.repeat(1, -(-horizon // length), 1)[:, :horizon]
    return found


def promised(trained: Trained, states: Tensor, actions: Tensor, steps: int = 80) -> tuple[Tensor, Tensor]:
    """The predicted return (E,) of plans (E, H, m), and the highest on the way of gradient ascent from them.

    >>> from dcem_lab.suite.agents import PlannerConfig
    >>> from dcem_lab.suite.rssm import RSSM, RSSMConfig
    >>> model = RSSM(3, 1, RSSMConfig(hidden=8, width=8)).requires_grad_(False)
    >>> trained = Trained("walker-walk", None, PlannerConfig(), model)
    >>> promise, refined = promised(trained, model.initial(torch.zeros(5, 3)), torch.zeros(5, 4, 1))
    >>> bool((refined >= promise).all())
    True
    """
    imagination = FrozenRollout(trained.model)

    def value(actions: Tensor) -> Tensor:
        return -imagination.sequence_cost(states, actions.unsqueeze(1)).squeeze(1)

    free = (0.97 * actions).atanh().requires_grad_()  # within the bounds, where tanh still has a slope
    optimizer = torch.optim.Adam([free], lr=0.05)
    with torch.no_grad():
        best = promise = value(actions)
    for _ in range(steps):
        now = value(free.tanh())
        best = torch.maximum(best, now.detach())
        (free.grad,) = torch.autograd.grad(-now.sum(), [free])
        optimizer.step()
    return promise, best


def write(
    name: str, controller: str, results: Path, episodes: int, decisions: int, horizons: Sequence[int]
) -> Path:
    """The promises after so many decisions of the first episodes lost; returns their folder."""
    trained, seeds = load(name), lost_seeds(results, controller)[:episodes]
    folder, rows = results / "dmc" / "down", []
    options = {"controller": controller, "episodes": episodes, "decisions": decisions}
    with recorded(folder, __spec__.name, name, **options, horizons=horizons):
        moment = play(trained, begin(trained, seeds), decisions)
        states, reward = moment.states(trained.model)[-1], moment.recent().tolist()
        for horizon in horizons:
            for search, actions in plans(trained, states, horizon).items():
                numbers = zip(seeds, reward, *promised(trained, states, actions), strict=True)
                for seed, now, promise, refined in numbers:
                    row = [seed, decisions, f"{now:.3f}", horizon, search, f"{promise:.3f}", f"{refined:.3f}"]
                    rows.append(row)
        write_csv(folder / f"{name}.csv", COLUMNS, rows)
    return folder


if __name__ == "__main__":
    given = arguments(
        "What plans promise where the walker stays down, as a CSV.",
        episodes=12,
        decisions=100,
        horizons=[12, 24, 36],
    )
    print(f"wrote {write(**given)}")

"""What plans promise where the walker's latent controller stays down, as a CSV.

    python -m dcem_lab.suite.plans_when_down

It plays the first seconds of episodes that the controller loses, and then plans from the same model states
with and without the decoder, with few and with many trajectories, over several horizons. A plan's promise is
the return that the model predicts, the objective of every search and of the decoder's training. Each plan is
also refined by gradient descent over its actions: how much more does the model promise nearby?
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from dcem_lab.report.sources import read_rows
from dcem_lab.runs import facts
from dcem_lab.runs.files import write_csv
from dcem_lab.runs.record import write_record
from dcem_lab.suite import evaluate
from dcem_lab.suite.agents.controller import follow, on_device, step_environments
from dcem_lab.suite.agents.planner import DTYPES, Planner, fast_rollout
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.rssm.fast.imagine import FrozenRollout
from dcem_lab.suite.trained import Trained
from dcem_lab.suite.walker_starts import DOWN, TASK

MANY: dict[str, Any] = {"samples": 1000, "elites": 100, "iterations": 10}
SEARCHES: dict[str, dict[str, Any]] = {
    "latent": {},
    "latent, 10,000 trajectories": MANY,
    "actions": {"tau": 0.0},
    "actions, 10,000 trajectories": {**MANY, "tau": 0.0},
}
"""Changes to the controller's planner; actions means without the decoder."""
COLUMNS = ["episode_seed", "decision", "reward", "horizon", "search", "promise", "refined"]
RECENT = 20  # decisions that the reward is the mean of


def lost_seeds(results: Path, controller: str) -> list[int]:
    """The episodes in the table of evaluations in which that controller stays down."""
    rows = read_rows(results / "dmc" / "evaluations.csv")
    return [
        int(row["episode_seed"])
        for row in rows
        if (row["task"], row["controller"]) == (TASK, controller) and float(row["total"]) < DOWN
    ]


@torch.no_grad()
def played(trained: Trained, seeds: Sequence[int], decisions: int) -> tuple[Tensor, Tensor]:
    """The model states (T + 1, E, S) along T decisions from every seed, and their rewards (T, E)."""
    plan = Planner(trained.model, trained.planner, trained.decoder, Generator().manual_seed(0), trained.value)
    rewards = []
    with closing(ParallelEnv(trained.environment(), len(seeds))) as envs:
        states = [trained.model.initial(on_device(envs.reset(seed=list(seeds))[0], torch.device("cpu")))]
        for _ in range(decisions):
            actions = plan(states[-1])
            moved = step_environments(envs, actions.numpy())
            rewards.append(torch.from_numpy(moved.rewards.copy()))
            observations, ended = (torch.from_numpy(x) for x in (moved.observations, moved.ended))
            states.append(follow(trained.model, states[-1], actions, observations.float(), ended))
    return torch.stack(states), torch.stack(rewards)


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
    began, started = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    trained = evaluate.load(name, torch.device("cpu"), dtype="bfloat16")
    seeds = lost_seeds(results, controller)[:episodes]
    if not seeds:
        raise ValueError(f"controller must be one with returns below {DOWN}, got {controller}")
    followed, rewards = played(trained, seeds, decisions)
    states, reward = followed[-1], rewards[-RECENT:].mean(dim=0)
    rows = []
    for horizon in horizons:
        for search, actions in plans(trained, states, horizon).items():
            numbers = zip(seeds, reward.tolist(), *promised(trained, states, actions), strict=True)
            for seed, now, promise, refined in numbers:
                row = [seed, decisions, f"{now:.3f}", horizon, search, f"{promise:.3f}", f"{refined:.3f}"]
                rows.append(row)
    folder = results / "dmc" / "down"
    write_csv(folder / f"{name}.csv", COLUMNS, rows)
    record = {
        "command": f"python -m {__spec__.name} {name} --controller {controller} --episodes {episodes} "
        f"--decisions {decisions} --horizons {' '.join(map(str, horizons))}",
        "started": started,
        **facts.here(),
        "wall_seconds": round(time.perf_counter() - began, 3),
    }
    write_record(folder, record)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="What plans promise where the walker stays down, as a CSV.")
    parser.add_argument("name", nargs="?", default="walker-walk-dcem", help="weights of a latent controller")
    parser.add_argument("--controller", default="latent-dcem", help="its name in the table of evaluations")
    parser.add_argument("--episodes", type=int, default=12)
    parser.add_argument("--decisions", type=int, default=100)
    parser.add_argument("--horizons", type=int, nargs="+", default=[12, 24, 36])
    parser.add_argument("--results", type=Path, default=Path("lab/results"))
    print(f"wrote {write(**vars(parser.parse_args()))}")


if __name__ == "__main__":
    main()

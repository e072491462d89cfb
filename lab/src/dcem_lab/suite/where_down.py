"""Episodes that the walker's latent controller loses, played again, and continued from any moment."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from dcem_lab.report.sources import read_rows
from dcem_lab.suite import evaluate
from dcem_lab.suite.agents.controller import on_device
from dcem_lab.suite.agents.planner import Planner
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.rssm import RSSM
from dcem_lab.suite.trained import Trained
from dcem_lab.suite.walker_starts import DOWN, TASK

CPU = torch.device("cpu")
LOW = 1.0  # of the reward for a decision, at most 2: the walker is down
RECENT = 20  # decisions that the reward is the mean of


def arguments(description: str, **defaults: int | list[int] | Path) -> dict[str, Any]:
    """Those of a command that measures something there: what all have, and options with these defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("name", nargs="?", default="walker-walk-dcem", help="weights of a latent controller")
    parser.add_argument("--controller", default="latent-dcem", help="its name in the table of evaluations")
    for name, default in {"results": Path("lab/results"), **defaults}.items():
        kind, many = (type(default[0]), "+") if isinstance(default, list) else (type(default), None)
        parser.add_argument(f"--{name}", type=kind, nargs=many, default=default, help="(%(default)s)")
    return vars(parser.parse_args())


def lost_seeds(results: Path, controller: str) -> list[int]:
    """The episodes in the table of evaluations in which that controller stays down."""
    rows = read_rows(results / "dmc" / "evaluations.csv")
    seeds = [
        int(row["episode_seed"])
        for row in rows
        if (row["task"], row["controller"]) == (TASK, controller) and float(row["total"]) < DOWN
    ]
    if not seeds:
        raise ValueError(f"controller must be one with returns below {DOWN}, got {controller}")
    return seeds


def load(name: str, **options: Any) -> Trained:
    """Shipped weights as they plan fastest on a CPU."""
    return evaluate.load(name, CPU, dtype="bfloat16", **options)


class Moment(NamedTuple):
    """E episodes up to now, T decisions each, and the simulators that hold them."""

    seeds: list[int]
    simulators: dict[str, Any]
    observations: Tensor  # (T + 1, E, n)
    actions: Tensor  # (T, E, m)
    rewards: Tensor  # (T, E)

    def states(self, model: RSSM) -> Tensor:
        """The states (T + 1, E, S) of a model that has followed these episodes."""
        states = [model.initial(self.observations[0])]
        for action, observation in zip(self.actions, self.observations[1:], strict=True):
            states.append(model.observe(states[-1], action, observation))
        return torch.stack(states)

    def recent(self) -> Tensor:
        """The mean reward (E,) of the last decisions."""
        return self.rewards[-RECENT:].mean(dim=0)

    def of(self, rows: list[int]) -> Moment:
        """Some of the episodes."""
        kept = {name: x[rows] for name, x in self.simulators.items() if name != "envs"}
        kept["envs"] = {str(i): self.simulators["envs"][str(row)] for i, row in enumerate(rows)}
        later = (x[:, rows] for x in (self.observations, self.actions, self.rewards))
        return Moment([self.seeds[row] for row in rows], kept, *later)


def begin(trained: Trained, seeds: list[int]) -> Moment:
    """The starts of episodes."""
    with closing(ParallelEnv(trained.environment(), len(seeds))) as envs:
        first = on_device(envs.reset(seed=seeds)[0], CPU).unsqueeze(0)
        no_actions = first.new_zeros(0, len(seeds), trained.model.action_dim)
        return Moment(seeds, envs.get_state(), first, no_actions, no_actions[..., 0].double())


@torch.no_grad()
def play(trained: Trained, moment: Moment, decisions: int) -> Moment:
    """The controller takes over there, with a model that has followed what happened before."""
    plan = Planner(trained.model, trained.planner, trained.decoder, Generator().manual_seed(0), trained.value)
    state, steps = moment.states(trained.model)[-1], []
    with closing(ParallelEnv(trained.environment(), len(moment.seeds))) as envs:
        envs.set_state(moment.simulators)
        for _ in range(decisions):
            action = plan(state).clone()
            observation, reward, *_ = envs.step(action.numpy())
            steps.append((on_device(observation, CPU), action, torch.from_numpy(reward)))
            state = trained.model.observe(state, action, steps[-1][0])
        grown = zip(moment[2:], zip(*steps, strict=True), strict=True)
        return Moment(
            moment.seeds, envs.get_state(), *(torch.cat([x, torch.stack(more)]) for x, more in grown)
        )

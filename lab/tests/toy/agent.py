"""Small agents in the plane, put together as experiments do."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from dcem import Decoder
from dcem_lab.suite.agents import (
    AgentConfig,
    Beginning,
    CollectingConfig,
    DecoderConfig,
    LearningConfig,
    Planet,
    PlannerConfig,
    ValueConfig,
    build,
)
from dcem_lab.suite.agents.build import spread
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from toy.environment import Plane

LEARNING = LearningConfig(batch=4, length=5, average=0.9)
COLLECTING = CollectingConfig(seed_episodes=3, replay_steps=200)
PLANNER = PlannerConfig(samples=10, elites=2, iterations=2, horizon=2)
MODEL = RSSMConfig(hidden=8, width=8, distance=3, normalize=True)


def make_planet(
    seed: int = 0,
    *,
    model: RSSMConfig = MODEL,
    planner: PlannerConfig = PLANNER,
    decoder: DecoderConfig | None = None,
    value: ValueConfig | None = None,
    learning: LearningConfig = LEARNING,
    collecting: CollectingConfig = COLLECTING,
    envs: int = 2,
    episode: int = 8,
    device: torch.device | str = "cpu",
    first_decoder: Decoder | None = None,
    replay: dict[str, Tensor] | None = None,
    seed_planner: PlannerConfig | None = None,
    **changes: Any,
) -> Planet:
    """In planes with episodes of so many steps; `changes` are to the settings of learning and collecting."""
    ours = {name: value for name, value in changes.items() if hasattr(learning, name)}
    theirs = {name: value for name, value in changes.items() if name not in ours}
    config = AgentConfig(replace(learning, **ours), replace(collecting, **theirs), planner, decoder, value)
    first = RSSM(2, 2, model, Generator().manual_seed(spread(seed)["model"]))
    begin = Beginning(first, first_decoder, replay, seed_planner)
    return build(ParallelEnv(functools.partial(Plane, episode), envs), config, begin, seed, device)

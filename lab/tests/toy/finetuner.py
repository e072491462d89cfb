"""A small agent whose planner is fine-tuned on the plane."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Generator

from dcem import Decoder
from dcem_lab.suite.agents import PlannerConfig
from dcem_lab.suite.agents.finetune import Finetuner
from dcem_lab.suite.agents.finetune_config import FinetuneConfig
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.trained import Trained
from toy.environment import Plane

E, T = 3, 8
PLANNER = PlannerConfig(samples=12, elites=3, iterations=2, horizon=3, tau=1.0)
SMALL = {"minibatch": 10, "value_width": 16, "value_updates": 2, "value_steps": 0, "gamma": 0.5}


def make_model() -> RSSM:
    config = RSSMConfig(
        hidden=8, width=8, distance=2, members=2, pessimism=0.5, predict_std=False, loss="mse"
    )
    return RSSM(2, 2, config, Generator().manual_seed(1))


def make_agent(
    parts: tuple[str, ...] = ("decoder",),
    latent: bool = True,
    seed: int = 0,
    episode: int = T,
    final: bool = False,
    **changes: Any,
) -> Finetuner:
    torch.manual_seed(0)
    decoder = Decoder(2, PLANNER.horizon, 2, hidden=(8,)) if latent else None
    config = FinetuneConfig(parts=parts, **{**SMALL, **changes})
    envs = ParallelEnv(functools.partial(Plane, episode, final=final), E)
    return Finetuner(envs, Trained("plane", None, PLANNER, make_model(), decoder), config, T, seed)

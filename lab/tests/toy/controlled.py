"""A run with a controller for the pendulum that has learned nothing yet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Generator

from dcem import Decoder
from dcem_lab.runs import Run
from dcem_lab.suite import ppo
from dcem_lab.suite.agents import PlannerConfig
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.trained import Trained

MODEL = RSSMConfig(hidden=8, width=8, distance=2)
PLANNER = PlannerConfig(samples=30, elites=6, iterations=3, horizon=3)


def make_run(folder: Path, latent: bool, planner: PlannerConfig = PLANNER, moved: float = 0.0) -> Path:
    """Of phase 3, latent or over action sequences; its last weights are `moved` away from its best."""
    torch.manual_seed(0)
    model = RSSM(3, 1, MODEL, Generator().manual_seed(0))
    decoder = Decoder(2, planner.horizon, 1, hidden=(8,)) if latent else None
    planner = replace(planner, tau=1.0) if latent else planner
    with Run(folder, ppo.Config(), experiment="ppo", tensorboard=False, bar=False) as run:
        trained = Trained("Pendulum-v1", 2, planner, model, decoder)
        for _ in run.steps(1, {"trained": trained}):
            if decoder is not None and moved:
                trained.keep_if_best(0.0)
                decoder.net[0].bias.data.add_(moved)
    return folder

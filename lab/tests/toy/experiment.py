"""A small experiment with every kind of state: model, dropout, optimiser, scheduler, generators, counters."""

from __future__ import annotations

import enum
import itertools
import random
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from dcem_lab.runs import Run
from dcem_lab.runs.settings import Settings, setting


class Method(enum.Enum):
    ADAM = "adam"
    SGD = "sgd"


@dataclass(frozen=True)
class Inner(Settings):
    """Nested settings."""

    dropout: float = setting(0.2, least=0, below=1)


@dataclass(frozen=True)
class Config(Settings):
    """A straight line fitted to noise."""

    seed: int = 0
    updates: int = setting(40, least=1)
    lr: float = setting(0.01, above=0)
    method: Method = Method.ADAM
    hidden: tuple[int, ...] = setting((8, 8), least=1, some=True)
    inner: Inner = Inner()
    note: str | None = None
    pause: float = 0.0
    save_every: float = 60.0
    fail_at: int = -1


PRESETS: dict[str, dict[str, object]] = {"tiny": {"updates": 5, "hidden": (4,)}}


def run(config: Config, run: Run) -> None:
    torch.set_num_threads(1)
    sizes = (3, *config.hidden, 1)
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.Tanh(), nn.Dropout(config.inner.dropout)]
    model = nn.Sequential(*layers[:-2])
    optimiser = (torch.optim.Adam if config.method is Method.ADAM else torch.optim.SGD)(
        model.parameters(), config.lr
    )
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, patience=2)
    noise = torch.Generator().manual_seed(config.seed)
    choice = np.random.default_rng(config.seed)
    best: dict[str, object] = {"loss": float("inf"), "seen": []}
    state = {
        "model": model,
        "optimiser": optimiser,
        "plateau": plateau,
        "noise": noise,
        "choice": choice,
        "best": best,
    }
    run.log(0, parameters=sum(p.numel() for p in model.parameters()))
    for step in run.steps(config.updates, state, save_every=config.save_every):
        if step == config.fail_at:
            raise ArithmeticError("asked to fail")
        x = torch.randn(16, 3, generator=noise)
        y = x.sum(-1, keepdim=True) + choice.normal() + random.random() + np.random.rand()  # noqa: NPY002
        loss = (model(x) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        plateau.step(loss.item())
        best["loss"] = min(best["loss"], loss.item())
        best["seen"] = [*best["seen"], step][-3:]
        run.log(step, loss=loss, lr=optimiser.param_groups[0]["lr"])
        time.sleep(config.pause)
    run.log(config.updates, best=best["loss"])

"""What a stored controller may ask for: no import that it chooses, no memory beyond that of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dcem_lab import experiments
from dcem_lab.suite.rssm import RSSMConfig


def check_experiment(name: object) -> None:
    """`experiments.load` imports any module by its path; what a file names must be one of ours."""
    if name not in experiments.EXPERIMENTS:
        known = ", ".join(experiments.EXPERIMENTS)
        raise ValueError(f"a stored experiment must be one of {known}, got {name!r}")


def check_task(task: object) -> None:
    """Gymnasium imports the module in front of a colon."""
    if not isinstance(task, str) or ":" in task:
        raise ValueError(f"a stored task must be a name without a module, got {task!r}")


def check_model(config: RSSMConfig, build: Callable[[], nn.Module], weights: Mapping[str, Tensor]) -> None:
    """ValueError where the model that `config` describes has other sizes than its weights."""
    if config.layers > len(weights):
        raise ValueError(f"model.layers must be at most {len(weights)}, as many as there are weights")
    with torch.device("meta"):  # where shapes cost nothing
        expected = {name: x.shape for name, x in build().state_dict().items()}
    for name, shape in expected.items():
        if name in weights and weights[name].shape != shape:
            raise ValueError(
                f"weights must fit the config, which says {tuple(shape)} for {name}, "
                f"got {tuple(weights[name].shape)}"
            )


def check_decoder(settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """ValueError where the decoder that `settings` describe has other sizes than its weights."""
    inputs = settings["latent_dim"] + settings.get("state_dim", 0)
    sizes = [inputs, *settings["hidden"], settings["horizon"] * settings["action_dim"]]
    found = [x.shape for name, x in weights.items() if name.endswith(".weight")]
    if [(b, a) for a, b in pairwise(sizes)] != [tuple(shape) for shape in found]:
        raise ValueError(f"decoder must fit its weights {[tuple(x) for x in found]}, got layers {sizes[:10]}")

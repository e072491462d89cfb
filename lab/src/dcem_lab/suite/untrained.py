"""A controller whose decoder is replaced by a new one: what is left without its training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dcem_lab.suite import embed
from dcem_lab.suite.agents import DecoderConfig, PlannerConfig
from dcem_lab.suite.agents.residual_decoder import stored_decoder
from dcem_lab.suite.trained import Trained


def with_new_decoder(trained: Trained, seed: int, name: str, **planner: Any) -> Trained:
    """A controller with the same weights that plans in the latent space of an untrained decoder.

    A latent controller gets one of the same shape. One that plans over action sequences and has a value gets
    the decoder and the planner with which `dcem train embed preset=value` starts.

    Args:
        trained: the controller.
        seed: of the decoder's weights.
        name: what to call the controller in an error.
        planner: changes to how it plans (``samples=50``).
    """
    if trained.decoder is not None:
        search = replace(trained.planner, **planner)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            decoder = stored_decoder({**trained.decoder.settings, "horizon": search.horizon})
    elif trained.value is not None:
        preset, shape = embed.PRESETS["value"]["planner"], embed.PRESETS["value"]["decoder"]
        assert isinstance(preset, PlannerConfig)
        assert isinstance(shape, DecoderConfig)
        search = replace(preset, **planner)
        decoder = shape.decoder(trained.model, search.horizon, seed)
    else:
        raise ValueError(f"new_decoder must be left out for {name}, which has neither a decoder nor a value")
    return replace(trained, planner=search, decoder=decoder)

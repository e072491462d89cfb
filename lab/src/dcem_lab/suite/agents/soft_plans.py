"""Plans with gradients, for what learns through them: decoder, reward and transition of a planner."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from dcem import Decoder
from dcem.backward import Backward
from dcem_lab.runs import require
from dcem_lab.suite.agents.guide import Guide
from dcem_lab.suite.agents.planner import DTYPES, PlannerConfig
from dcem_lab.suite.agents.value import Value
from dcem_lab.suite.rssm import RSSM
from dcem_lab.suite.rssm.fast.imagine import FrozenRollout

PARTS = ("decoder", "reward", "transition")
"""The parts of a controller's parameters; its transition is the GRU, the observation head and the termination
head, if there is one."""


def require_parts(parts: tuple[str, ...], at_least: int = 1) -> None:
    """Raise ValueError unless these are some of `PARTS`, and at least this many."""
    known = len(set(parts)) == len(parts) >= at_least and set(parts) <= set(PARTS)
    require(known, "parts", list(parts), f"some of {', '.join(PARTS)}, each once")


def modules_of(part: str, model: RSSM, decoder: Decoder | None) -> nn.ModuleList:
    """The modules of a part."""
    parts: dict[str, list[nn.Module | None]] = {
        "decoder": [decoder],
        "reward": [model.reward_head],
        "transition": [model.gru, model.observation_head, model.termination_head],
    }
    return nn.ModuleList(module for module in parts[part] if module is not None)


class SoftPlans:
    """Planned actions as a function of model states and noise. A value does not learn.

    Args:
        model, decoder, planner, value: as in `Planner`, but for copies: weights are read as they are.
        backward: how to differentiate a plan.
        parts: what gets gradients. A frozen transition saves half of the backward pass.
    """

    def __init__(
        self,
        model: RSSM,
        decoder: Decoder | None,
        planner: PlannerConfig,
        backward: Backward,
        value: Value | None,
        parts: Collection[str],
    ) -> None:
        self._decoder, self._planner, self._frozen = decoder, planner, None
        if "transition" not in parts:
            self._frozen = FrozenRollout(model, "reward" in parts, DTYPES[planner.dtype])
        self._guide = Guide(value, model, planner.value_pessimism) if value is not None else None
        self.mpc = planner.mpc(model, self._frozen or model, decoder, backward, self._guide)
        self.noise_shape = planner.iterations, planner.samples, self.mpc.search_dim
        """(T, N, n) of the noise that one plan takes."""

    @torch.no_grad()
    def situation(self, states: Tensor, noise: Tensor | None = None) -> Any:
        """What `mpc` plans from: see `PlannerConfig.situation`."""
        if self._frozen is not None:
            self._frozen.refresh()
        return self._planner.situation(states, self._guide, self._decoder, noise)

    def __call__(self, states: Tensor, noise: Tensor) -> Tensor:
        """Model states (B, S) and noise (B, T, N, n) → actions (B, m)."""
        situation = self.situation(states, noise[:, 0])
        return self.mpc(situation, noise=noise.transpose(0, 1), cost=False).action

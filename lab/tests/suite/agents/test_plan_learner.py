"""Plans that learn to please critics, through the plan."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Generator

from dcem_lab.suite.agents import (
    DecoderConfig,
    DecoderLearner,
    PlanConfig,
    PlanLearner,
    PlannerConfig,
    Value,
)
from dcem_lab.suite.agents.residual_decoder import ResidualDecoder
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM, RSSMConfig

PLANNER = PlannerConfig(samples=20, elites=4, iterations=3, horizon=3, tau=0.5)
CONFIG = PlanConfig(updates_per_step=1.0, lr=3e-3, average=0.5)
SAMPLING = DecoderConfig(states=16, context=4)


def make(parts: tuple[str, ...]) -> PlanLearner:
    generator = Generator().manual_seed(0)
    model = RSSM(3, 2, RSSMConfig(hidden=8, width=8, members=2, pessimism=0.5), generator)
    value = Value(3, 2, critics=3, width=16, gamma=0.9, generator=generator).requires_grad_(False)
    torch.manual_seed(0)
    decoder = ResidualDecoder(2, 3, 2, hidden=(8,))
    replay = ReplayBuffer(2, 50, 3, 2, shortest_episode=5)
    for t in range(40):
        x = torch.randn(2, 3, generator=generator)
        replay.add(x, x[:, :2].tanh(), x.sum(dim=-1), x, torch.full((2,), t % 20 == 19))
    latent = DecoderLearner(decoder, copy.deepcopy(model), replay, SAMPLING, PLANNER, generator, value)
    return PlanLearner(model, latent, replace(CONFIG, parts=parts), generator)


@pytest.mark.parametrize("parts", [["decoder"], ["decoder", "reward"], ["reward"], ["reward", "transition"]])
def test_critics_are_pleased_and_nothing_else_changes(parts: list[str]) -> None:
    learner = make(tuple(parts))
    model = learner.model
    kept = {
        "reward": list(model.reward_head.parameters()),
        "transition": [*model.gru.parameters(), *model.observation_head.parameters()],
        "decoder": list(learner.latent.decoder.parameters()),
    }
    before = {part: [p.detach().clone() for p in tensors] for part, tensors in kept.items()}

    def pleased() -> float:
        learner.generator.manual_seed(7)
        with torch.no_grad():
            return -sum(float(learner.loss()[0]) for _ in range(10)) / 10

    first = pleased()
    for _ in range(60):
        learner.update()
    assert pleased() > first + 1e-4
    for part, tensors in kept.items():
        same = [torch.equal(one, other) for one, other in zip(tensors, before[part], strict=True)]
        assert all(same) if part not in parts else not any(same[:1])


def test_the_averages_are_those_that_act() -> None:
    learner = make(("decoder", "reward"))
    acting = list(learner.average.parameters())
    first = [p.clone() for p in acting]
    learner.update()
    live = list(learner._network.parameters())
    for average, before, now in zip(acting, first, live, strict=True):
        torch.testing.assert_close(average, (before + now.detach()) / 2)


def test_unknown_parts_are_named() -> None:
    with pytest.raises(ValueError, match="parts must be some of decoder, reward, transition, each once"):
        PlanConfig(parts=("critic",))

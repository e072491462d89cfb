"""Targets from imagined steps: λ-returns by hand in a linear world, and what they must not touch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from dcem_lab.suite.agents import ValueConfig, ValueLearner
from dcem_lab.suite.replay import Chunk, ReplayBuffer
from dcem_lab.suite.rssm import RSSM, RSSMConfig

CONFIG = ValueConfig(
    targets="imagined", imagined_steps=2, lam=0.8, critics=2, width=16, batch=8, gamma=0.5, reward_scale=0.5,
    smoothing=0.0, updates_per_step=1.0,
)  # fmt: skip
STEP = Chunk(  # to (1, 0), for a reward of 3
    torch.tensor([[[0.0, 0.0], [1.0, 0.0]]]),
    torch.tensor([[[0.7]]]),
    torch.tensor([[3.0]]),
    torch.zeros(1, 1, dtype=torch.bool),
    torch.ones(1, 1, dtype=torch.bool),
)


class Inputs(nn.Module):
    """In place of a GRU: h is what goes in, [x, u]."""

    def forward(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        return inputs


class Judges(nn.Module):
    """u = −x_0 / 4, worth 10 + x_0 + u to the one and 12 + x_0 + u to the other."""

    def actor(self, x: Tensor) -> Tensor:
        return -x[..., :1] / 4

    def forward(self, x: Tensor, u: Tensor) -> Tensor:
        return torch.tensor([[10.0], [12.0]]) + (x[..., :1] + u).squeeze(-1)


def linear_world(going_on: float | None = None) -> RSSM:
    """Of two members: x_0 grows by u and by 3 u, and where it comes to earns x_0 and 3 x_0.

    It goes on with that probability where there is one.
    """
    config = RSSMConfig(
        hidden=3, layers=0, residual=True, predict_std=False, sample=False, loss="mse", members=2,
        pessimism=0.5, termination=going_on is not None,
    )  # fmt: skip
    model = RSSM(2, 1, config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.observation_head.weights[0][:, 2, 0] = torch.tensor([1.0, 3.0])
        model.reward_head.weights[0][:, 3, 0] = torch.tensor([1.0, 3.0])
        if model.termination_head is not None and going_on is not None:
            model.termination_head.biases[0].fill_(math.log((1 - going_on) / going_on))
    model.gru = Inputs()  # type: ignore[assignment]
    return model


def by_hand(model: RSSM, chunk: Chunk = STEP, **changes: Any) -> float:
    """The target of one replayed step in that world, in units of the reward."""
    config = replace(CONFIG, **changes)
    it = ValueLearner(config.value(model, 0), model, ReplayBuffer(1, 10, 2, 1), config, Generator())
    it.average = Judges()  # type: ignore[assignment]
    return it.targets(it.transitions(chunk)).item() / config.reward_scale


def test_the_return_in_a_linear_world_is_that_by_hand() -> None:
    # x_0 of the members: 1, 1, then 0.75, 0.25, then 0.625, −0.125. Means 1, 0.5, 0.25; u = −1/4 of them.
    values, rewards = (10.75, 10.375, 10.1875), ((0.75 + 3 * 0.25) / 2, (0.625 - 3 * 0.125) / 2)
    g2 = 0.2 * values[1] + 0.8 * (rewards[1] + 0.5 * values[2])
    g1 = 0.2 * values[0] + 0.8 * (rewards[0] + 0.5 * g2)
    assert g1 == pytest.approx(5.25)
    assert by_hand(linear_world()) == pytest.approx(3 + 0.5 * g1)
    assert by_hand(linear_world(), lam=1.0) == pytest.approx(3 + 0.5 * (0.75 + 0.5 * (0.125 + 0.5 * 10.1875)))
    assert by_hand(linear_world(), imagined_steps=1) == pytest.approx(
        3 + 0.5 * (0.2 * 10.75 + 0.8 * (0.75 + 0.5 * 10.375))
    )


def test_the_bound_holds_for_all_that_critics_say() -> None:
    g2 = 0.2 * 10 + 0.8 * (0.125 + 0.5 * 10)
    assert by_hand(linear_world(), bound=10.0) == pytest.approx(
        3 + 0.5 * (0.2 * 10 + 0.8 * (0.75 + 0.5 * g2))
    )


@pytest.mark.parametrize("c", [0.5, 1e-12])
def test_a_predicted_termination_stops_the_return(c: float) -> None:
    g2 = 0.2 * 10.375 + 0.8 * (0.125 + 0.5 * c * 10.1875)
    g1 = 0.2 * 10.75 + 0.8 * (0.75 + 0.5 * c * g2)
    assert by_hand(linear_world(going_on=c)) == pytest.approx(3 + 0.5 * g1)


@pytest.mark.parametrize("going_on", [None, 0.5])
def test_nothing_is_imagined_behind_a_replayed_termination(going_on: float | None) -> None:
    over = STEP._replace(terminated=torch.ones(1, 1, dtype=torch.bool))
    assert by_hand(linear_world(going_on), over) == 3


def remembered() -> ReplayBuffer:
    replay, generator = ReplayBuffer(4, 30, 2, 1, shortest_episode=5), Generator().manual_seed(1)
    x = torch.randn(4, 2, generator=generator)
    for t in range(20):
        u, to = torch.rand(4, 1, generator=generator), torch.randn(4, 2, generator=generator)
        replay.add(x, u, x[:, 0], to, torch.full((4,), t % 10 == 9))
        x = to
    return replay


def learner(**changes: Any) -> ValueLearner:
    config = replace(CONFIG, critics=5, smoothing=0.2, early_share=0.25, early_steps=2, **changes)
    settings = RSSMConfig(hidden=4, width=4, members=3, termination=True, normalize=True)
    model = RSSM(2, 1, settings, Generator().manual_seed(0))
    return ValueLearner(config.value(model, 0), model, remembered(), config, Generator().manual_seed(0))


def test_without_lambda_it_is_a_replayed_target_of_one_step() -> None:
    chunk = remembered().sample(50, 1, Generator().manual_seed(2))
    imagined, replayed, usual = (
        it.targets(it.transitions(chunk))
        for it in (learner(lam=0.0), learner(targets="replay", steps=1), learner())
    )
    torch.testing.assert_close(imagined, replayed)
    assert (usual - replayed).abs().max() > 1e-3


def test_the_world_model_neither_learns_nor_feels_a_gradient() -> None:
    it = learner()
    before = {name: value.clone() for name, value in it.model.state_dict().items()}
    it._draw_anew()
    with torch.enable_grad():
        loss, _ = it.loss()
    assert all(p.requires_grad for p in it.model.parameters())
    gradients = torch.autograd.grad(loss, [*it.model.parameters()], allow_unused=True, retain_graph=True)
    assert all(gradient is None for gradient in gradients)
    assert all(gradient is not None for gradient in torch.autograd.grad(loss, [*it.value.parameters()]))
    for _ in range(5):
        it.update()
    assert all(torch.equal(value, before[name]) for name, value in it.model.state_dict().items())
    assert set(it.metrics()) >= {"critic_loss", "value", "target"}


def test_one_replayed_step_is_enough() -> None:
    assert (CONFIG.replayed_steps, replace(CONFIG, targets="replay", steps=7).replayed_steps) == (1, 7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": "dreamed"}, "targets must be one of replay, imagined, got 'dreamed'"),
        ({"imagined_steps": 0}, "imagined_steps must be at least 1, got 0"),
        ({"lam": 1.1}, "lam must be at least 0 and at most 1, got 1.1"),
    ],
)
def test_settings_have_ranges(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)

"""Critics and actors: values over bins, targets by hand, and a task whose answer is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from dcem_lab.suite import trust
from dcem_lab.suite.agents import Value, ValueConfig, ValueLearner
from dcem_lab.suite.agents.guide import Guide
from dcem_lab.suite.agents.two_hot import TwoHot, symexp, symlog
from dcem_lab.suite.replay import Chunk, ReplayBuffer
from dcem_lab.suite.rssm import RSSM, RSSMConfig

TINY = ValueConfig(critics=3, width=16, batch=32, steps=2, gamma=0.5, reward_scale=0.5, updates_per_step=1.0)


@given(st.floats(-1e4, 1e4), st.booleans())
def test_the_mean_of_two_hot_weights_is_the_number(y: float, symmetric: bool) -> None:
    bins = TwoHot(51, 10.0, symmetric)
    number = torch.tensor(y, dtype=torch.float64)
    weights = bins.weights(number)
    assert weights.sum() == pytest.approx(1)
    assert weights.count_nonzero() <= 2
    held = y if symmetric else min(max(y, -10.0), 10.0)
    assert bins.mean(weights.log()).item() == pytest.approx(held, abs=1e-6, rel=1e-9)


def test_the_cross_entropy_is_least_at_the_weights_themselves() -> None:
    bins, y = TwoHot(11, 3.0), torch.randn(7, dtype=torch.float64)
    logits = (bins.weights(y) + 1e-9).log().requires_grad_()
    torch.testing.assert_close(
        torch.autograd.grad(bins.loss(logits, y).sum(), logits)[0],
        torch.zeros_like(logits),
        atol=1e-7,
        rtol=0,
    )


def test_symexp_is_the_inverse_of_symlog() -> None:
    x = torch.linspace(-50, 50, 21, dtype=torch.float64)
    torch.testing.assert_close(symexp(symlog(x)), x)


@pytest.mark.parametrize("values", ["scalar", "two-hot"])
def test_critics_do_not_mix(values: str) -> None:
    value = Value(3, 2, critics=4, width=8, values=values, generator=Generator().manual_seed(0))
    for parameter in value.critics.parameters():
        parameter.data.normal_()
    x, u = torch.randn(5, 6, 3), torch.randn(5, 6, 2)
    before = value(x, u)
    assert before.shape == (4, 5, 6)
    with torch.no_grad():
        value.critics.weights[0][2].add_(1.0)
    changed = (value(x, u) != before).flatten(1).any(dim=1)
    assert changed.tolist() == [False, False, True, False]


def test_settings_rebuild_a_value() -> None:
    value = Value(3, 2, critics=2, width=8, values="two-hot", gamma=0.9)
    again = Value(**value.settings)
    again.load_state_dict(value.state_dict())
    x, u = torch.randn(5, 3), torch.randn(5, 2)
    assert torch.equal(again(x, u), value(x, u))


def learner(config: ValueConfig = TINY, replay: ReplayBuffer | None = None, **changes: Any) -> ValueLearner:
    model = RSSM(2, 1, RSSMConfig(hidden=4, width=4))
    replay = replay or ReplayBuffer(1, 10, 2, 1)
    generator = Generator().manual_seed(0)
    return ValueLearner(config.value(model, 0), model, replay, config, generator)


def constant(learner: ValueLearner, q: list[float]) -> None:
    """Let averaged critics say these values everywhere, in units of the reward."""
    for parameter in learner.average.critics.parameters():
        parameter.zero_()
    learner.average.critics.biases[-1].copy_(learner.value.reward_scale * torch.tensor(q).unsqueeze(-1))


CHUNK = Chunk(
    torch.randn(50, 3, 2),
    torch.randn(50, 2, 1),
    torch.tensor([1.0, 10.0]).repeat(50, 1),
    torch.zeros(50, 2, dtype=torch.bool),
    torch.ones(50, 2, dtype=torch.bool),
)


def test_targets_are_returns_and_the_less_of_two_critics_behind_them() -> None:
    it = learner()
    constant(it, [100.0, 200.0, 300.0])
    transitions = it.transitions(CHUNK)
    targets = it.targets(transitions)
    assert torch.equal(transitions.x, CHUNK.observations[:, 0])
    assert torch.equal(transitions.u, CHUNK.actions[:, 0])
    found = (targets / 0.5).tolist()  # the scale
    assert set(found) == {1 + 0.5 * 10 + 0.25 * q for q in (100.0, 200.0)}  # 300 is never the less of two
    assert found.count(31.0) > found.count(56.0)  # two of the three pairs have the least


def test_a_bound_holds_where_critics_take_over() -> None:
    it = learner(ValueConfig(**{**vars(TINY), "bound": 40.0}))
    constant(it, [100.0, 200.0, 300.0])
    assert set((it.targets(it.transitions(CHUNK)) / 0.5).tolist()) == {1 + 0.5 * 10 + 0.25 * 40}


def test_nothing_is_behind_a_termination() -> None:
    over = CHUNK.terminated.clone()
    over[::2, 1] = True
    it = learner()
    constant(it, [100.0, 100.0, 100.0])
    targets = it.targets(it.transitions(CHUNK._replace(terminated=over))) / 0.5
    assert set(targets[1::2].tolist()) == {31.0}
    assert set(targets[::2].tolist()) == {1 + 0.5 * 10}


@pytest.mark.parametrize("terminated", [True, False])
def test_the_last_steps_of_an_episode_are_learned_where_nothing_follows(terminated: bool) -> None:
    replay = ReplayBuffer(1, 50, 2, 1, shortest_episode=2)
    for t in range(4):
        last = torch.tensor([t == 3])
        x = torch.full((1, 2), float(t))
        replay.add(x, torch.zeros(1, 1), torch.ones(1), x + 1, last, last & terminated)
    it = learner(replay=replay)
    constant(it, [100.0, 100.0, 100.0])
    chunk = replay.sample(200, 2, it.generator, padded=True)
    transitions = it.transitions(chunk)
    starts, targets = transitions.x[:, 0], it.targets(transitions)
    found = {int(at): target / 0.5 for at, target in zip(starts, targets.tolist(), strict=True)}
    assert found == ({0: 26.5, 1: 26.5, 2: 1.5, 3: 1.0} if terminated else {0: 26.5, 1: 26.5, 2: 26.5})


def reaching(n: int = 400) -> ReplayBuffer:
    """Episodes of one step in which a number x and an action u earn −(u + x / 2)²."""
    replay, generator = ReplayBuffer(n, 3, 2, 1, shortest_episode=1), Generator().manual_seed(1)
    x = torch.rand(n, 2, generator=generator) * 2 - 1
    u = torch.rand(n, 1, generator=generator) * 2 - 1
    reward = -(u[:, 0] + x[:, 0] / 2).square()
    replay.add(x, u, reward, x, torch.ones(n, dtype=torch.bool))
    return replay


@pytest.mark.parametrize("values", ["scalar", "two-hot"])
def test_an_actor_finds_what_is_best(values: str) -> None:
    changes = {"steps": 1, "gamma": 0.0, "batch": 128, "lr": 3e-3, "values": values, "span": 1.0}
    it = learner(ValueConfig(**{**vars(TINY), **changes}), reaching())
    for _ in range(400):
        it.update()
    x = torch.rand(100, 2) * 2 - 1
    error = it.average.actor(x)[:, 0] + x[:, 0] / 2
    assert error.square().mean().sqrt() < 0.12
    u = torch.zeros(100, 1)
    expected = -(x[:, 0] / 2).square()
    assert (it.average(x, u).mean(dim=0) - expected).square().mean().sqrt() < 0.1
    assert set(it.metrics()) >= {"critic_loss", "value", "target"}


def test_the_actor_does_not_change_the_critics() -> None:
    it = learner(ValueConfig(**{**vars(TINY), "steps": 1}), reaching())
    critics = list(it.value.critics.parameters())
    it._draw_anew()
    loss, _ = it.loss()
    whole = torch.autograd.grad(loss, critics)
    it.generator.manual_seed(0)
    transitions = it.transitions(it.replay.sample(32, 1, it.generator, padded=True))
    said = it.value.say(transitions.x, transitions.u)
    alone = it.value.errors(said, it.targets(transitions)).mean(dim=-1).sum()
    for one, other in zip(whole, torch.autograd.grad(alone, critics), strict=True):
        torch.testing.assert_close(one, other)


def test_updates_learn_from_different_transitions_and_new_ones_in_every_step() -> None:
    it = learner(ValueConfig(**{**vars(TINY), "steps": 1, "updates_per_step": 3.0}), reaching())
    learned = []
    for _ in range(2):
        it.keep_pace()
        learned.append(it._drawn.clone())
    assert it.updates == 6 and it._next == 3
    batches = torch.cat(learned).flatten(1)
    assert len(batches.unique(dim=0)) == 6


def test_every_batch_has_its_share_of_beginnings() -> None:
    replay = ReplayBuffer(1, 200, 2, 1, shortest_episode=20)
    for t in range(150):
        x = torch.full((1, 2), float(t % 50))
        replay.add(x, torch.zeros(1, 1), torch.zeros(1), x + 1, torch.tensor([t % 50 == 49]))
    config = {**vars(TINY), "early_share": 0.25, "early_steps": 5, "updates_per_step": 2.5}
    it = learner(ValueConfig(**config), replay)
    it._draw_anew()
    first = it._drawn[:, :, 0]
    assert first.shape == (3, 32)
    assert (first[:, -8:] <= 4).all() and (first[:, :-8].amax(dim=1) > 30).all()


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("termination", [False, True])
def test_a_state_is_worth_less_where_critics_or_members_disagree(termination: bool) -> None:
    config = RSSMConfig(hidden=4, width=4, members=2, termination=termination)
    model = RSSM(3, 2, config, Generator().manual_seed(0))
    value = Value(3, 2, critics=3, width=8, generator=Generator().manual_seed(0))
    state = torch.randn(5, 7, model.state_dim, requires_grad=True)
    got = Guide(value, model, pessimism=0.5).worth(state)
    expected = torch.empty(5, 7)
    for i in range(5):
        for j in range(7):
            said: list[Tensor] = []
            for member in state[i, j].chunk(2):
                x = member[4:7].unsqueeze(0)
                going_on = member[7] if termination else 1
                said += [*(value(x, value.actor(x)).flatten() * going_on)]
            found = torch.stack(said)
            expected[i, j] = found.mean() - 0.5 * found.std(correction=0)
    torch.testing.assert_close(got, expected)
    assert torch.autograd.grad(got.sum(), state)[0].isfinite().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 10**9}, "weights must fit the config"),
        ({"features": 4}, "value.features must be the model's 3, got 4"),
        ({"values": "three-hot"}, "value.values must be one of scalar, two-hot, got 'three-hot'"),
        ({"gamma": 1.0}, "value.gamma must be at least 0 and below 1, got 1.0"),
        ({"critics": True}, "value.critics must be int, got True"),
        ({"layers": 9}, "settings of value must be among"),
    ],
)
def test_a_stored_value_is_held_against_its_weights(changes: dict[str, Any], message: str) -> None:
    model, value = RSSM(3, 2, RSSMConfig(hidden=4, width=4)), Value(3, 2, critics=2, width=8)
    trust.check_value(value.settings, value.state_dict(), model)
    with pytest.raises(ValueError, match=message):
        trust.check_value({**value.settings, **changes}, value.state_dict(), model)
    with pytest.raises(ValueError, match="value's weights must be those of critics and actor"):
        trust.check_value(value.settings, {}, model)

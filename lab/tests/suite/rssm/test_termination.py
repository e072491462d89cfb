"""What a world model knows of an episode's end: in its states, its costs and its loss."""

import dataclasses

import pytest
import torch
from torch import Generator, Tensor

from dcem.control.rollout import rollout
from dcem_lab.suite.rssm import RSSM, RSSMConfig, multistep_loss
from dcem_lab.suite.rssm.fast.imagine import FrozenRollout

pytestmark = pytest.mark.usefixtures("double")

CONFIG = RSSMConfig(
    hidden=5, width=6, distance=4, members=2, pessimism=0.3, activation="gelu", termination=True
)


def make(**changes: object) -> RSSM:
    model = RSSM(3, 2, dataclasses.replace(CONFIG, **changes), Generator().manual_seed(0))
    with torch.no_grad():  # untrained heads say next to nothing
        for head in (model.reward_head, model.termination_head):
            if head is not None:
                head.weights[-1].mul_(5)
    return model


def chunks(count: int = 4, length: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    g = Generator().manual_seed(1)
    obs, actions = torch.randn(count, length + 1, 3, generator=g), torch.randn(count, length, 2, generator=g)
    return obs, actions, torch.randn(count, length, generator=g)


def test_rewards_count_with_the_probability_that_no_step_before_ended_the_episode() -> None:
    model, actions = make(pessimism=0.0), torch.randn(6, 5, 2)
    start = state = model.initial(torch.randn(6, 3))
    expected, going_on = torch.zeros(6), torch.ones(2, 6)
    for action in actions.unbind(1):
        state, _ = model.step(state, action)
        h_and_x = state.view(6, 2, model.member_dim)[..., :-1].transpose(0, 1)
        expected -= (going_on * model.reward_head(h_and_x).squeeze(-1)).mean(0)
        going_on = going_on * (1 - torch.sigmoid(model.termination_head(h_and_x).squeeze(-1)))
        torch.testing.assert_close(model.going_on(state), going_on.mean(0))
    torch.testing.assert_close(rollout(model, start, actions), expected)
    torch.testing.assert_close(
        FrozenRollout(model).sequence_cost(start, actions.unsqueeze(1))[:, 0], expected
    )
    assert going_on.max() < 0.9, "where little can happen, little is shown"


def test_after_a_certain_end_nothing_counts() -> None:
    model = make()
    with torch.no_grad():
        model.termination_head.biases[-1].fill_(100.0)
    start, action = model.initial(torch.randn(4, 3)), torch.randn(4, 2)
    state, first = model.step(start, action)
    assert (first != 0).all(), "what ends an episode is earned"
    _, second = model.step(state, action)
    assert second.abs().max() < 1e-12
    again = model.observe(state, action, torch.randn(4, 3))
    assert (model.going_on(again) == 1).all(), "what is observed has not ended"


def test_gradients_of_what_steps_cost() -> None:
    model = make()
    start = model.initial(torch.randn(2, 3))

    def cost(actions: Tensor) -> Tensor:
        return rollout(model, start, actions)

    assert torch.autograd.gradcheck(cost, torch.randn(2, 3, 2, requires_grad=True))

    def frozen(actions: Tensor) -> Tensor:
        return FrozenRollout(model).sequence_cost(start, actions)

    assert torch.autograd.gradcheck(frozen, torch.randn(2, 2, 3, 2, requires_grad=True))


@pytest.mark.parametrize("loss", ["nll", "rmse"])
@pytest.mark.parametrize("fast", [True, False])
def test_nothing_after_an_end_matters_to_the_loss(loss: str, fast: bool) -> None:
    model = make(loss=loss, predict_std=loss == "nll", sample=False)
    obs, actions, rewards = chunks()
    steps = torch.tensor([9, 6, 2, 1])
    at = torch.arange(9)
    valid, terminated = at < steps[:, None], at == steps[:, None] - 1

    def found(after: float) -> tuple[Tensor, tuple[Tensor, ...]]:
        padded = obs.clone()
        padded[:, 1:][~valid] = after
        inputs = padded, actions.masked_fill(~valid[..., None], after), rewards.masked_fill(~valid, after)
        loss, metrics = multistep_loss(model, *inputs, terminated, valid, fast=fast)
        assert metrics["termination_loss"] > 0
        return loss, torch.autograd.grad(loss, list(model.parameters()))

    torch.testing.assert_close(found(0.0), found(2.0))


@pytest.mark.parametrize("fast", [True, False])
def test_the_loss_of_cut_chunks_is_what_a_planner_would_have_imagined(fast: bool) -> None:
    model = make(loss="mse", predict_std=False, sample=False, members=1, pessimism=0.0, distance=3)
    obs, actions, rewards = chunks()
    lengths = [9, 6, 2, 1]
    errors: dict[int, list[Tensor]] = {1: [], 2: [], 3: []}
    ends: dict[int, list[Tensor]] = {1: [], 2: [], 3: []}
    for i, length in enumerate(lengths):
        filtered = model.initial(obs[i, 0])
        for t in range(length):
            state = filtered
            for d in range(1, min(3, length - t) + 1):
                before = model.going_on(state)
                state, cost = model.step(state, actions[i, t + d - 1])
                x = (model.decode(state) - obs[i, t + d]).square().mean()
                errors[d].append(x + (-cost / before - rewards[i, t + d - 1]).square())
                end = 1 - model.going_on(state) / before
                ends[d].append(-(end if t + d == length else 1 - end).log())
            filtered = model.observe(filtered, actions[i, t], obs[i, t + 1])
    expected = sum(torch.stack(part[d]).mean() for part in (errors, ends) for d in (1, 2, 3)) / 3
    at, steps = torch.arange(9), torch.tensor(lengths)[:, None]
    loss, _ = multistep_loss(model, obs, actions, rewards, at == steps - 1, at < steps, fast=fast)
    torch.testing.assert_close(loss, expected)


def test_a_model_of_a_task_without_an_end_has_no_head_and_the_numbers_it_had() -> None:
    with_head, without = make(), make(termination=False)
    assert without.termination_head is None
    assert not any("termination" in name or "reward_scale" in name for name in without.state_dict())
    shared = without.state_dict()
    assert all(torch.equal(with_head.state_dict()[name], x) for name, x in shared.items())
    obs, actions, rewards = chunks()
    flags = torch.zeros(4, 9).bool(), torch.ones(4, 9).bool()
    generators = [Generator().manual_seed(0) for _ in range(2)]
    plain, told = (
        multistep_loss(without, obs, actions, rewards, *given, generator=generator)[0]
        for given, generator in zip(((), flags), generators, strict=True)
    )
    assert torch.equal(plain, told)
    assert (without.going_on(without.initial(obs[:, 0])) == 1).all()


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_rewards_of_any_scale_are_learned_alike(unit: float) -> None:
    models = [make(scale_rewards=True, sample=False) for _ in range(2)]
    obs, actions, rewards = chunks()
    found = []
    for model, told in zip(models, (rewards, unit * rewards), strict=True):
        model.reward_scale.update(told)
        loss, _ = multistep_loss(model, obs, actions, told)
        found.append((loss, torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(*found)
    costs = [model.step(model.initial(obs[:, 0]), actions[:, 0])[1] for model in models]
    torch.testing.assert_close(unit * costs[0], costs[1])


def test_the_reward_scale_is_the_root_mean_square_of_all_that_came_in() -> None:
    scale, rewards = make(scale_rewards=True).reward_scale, 50 * torch.randn(3, 7, 4)
    assert scale.unit == 1
    scale.update(torch.zeros(4))
    assert scale.unit == 1, "as long as nothing was earned"
    for batch in rewards:
        scale.update(batch)
    expected = torch.cat([rewards.flatten(), torch.zeros(4)]).square().mean().sqrt()
    torch.testing.assert_close(scale.unit, expected)
    torch.testing.assert_close(scale.decode(scale.encode(rewards)), rewards)
    half = scale.decode(torch.full((2,), 60_000.0, dtype=torch.float16))
    assert half.isfinite().all()

"""Rollouts of a frozen model against the model's own steps, differentiated by autograd."""

import pytest
import torch
from torch import Generator

from dcem import DCEM, MPC
from dcem.control.rollout import rollout
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.rssm.fast.imagine import FrozenRollout


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize(
    "config",
    [
        RSSMConfig(hidden=5, width=6, members=3, pessimism=0.7, residual=True, activation="gelu"),
        RSSMConfig(hidden=5, width=4, layers=1, activation="elu"),
        RSSMConfig(
            hidden=4, width=6, layers=3, members=2, predict_std=False, loss="mse", normalize=True, angles=(1,)
        ),
        RSSMConfig(hidden=4, layers=0, residual=True),
        RSSMConfig(hidden=4, width=6, members=2, memory=False),
        RSSMConfig(hidden=4, width=6, members=3, pessimism=0.7, termination=True, scale_rewards=True),
    ],
)
def test_costs_and_gradients_are_those_of_the_steps(config: RSSMConfig, batch: tuple[int, ...]) -> None:
    generator = Generator().manual_seed(0)
    model = RSSM(3, 2, config, generator)
    model.reward_scale.update(torch.tensor([30.0]))
    state = torch.rand(*batch, model.state_dim, generator=generator)
    actions = torch.randn(*batch, 7, 4, 2, generator=generator).requires_grad_()
    got = FrozenRollout(model).sequence_cost(state, actions)
    states = state.unsqueeze(-2).expand(*batch, 7, -1)
    expected = rollout(model, states, actions)
    torch.testing.assert_close(got, expected)
    above = torch.randn(*batch, 7, generator=generator)
    [gradient] = torch.autograd.grad(expected, actions, above, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(got, actions, above)[0], gradient)
    assert all(p.grad is None for p in model.parameters())


def test_a_plan_needs_no_more_than_the_rollout() -> None:
    model = RSSM(3, 2, RSSMConfig(hidden=4, width=4), Generator().manual_seed(0))
    state, solver = model.initial(torch.ones(5, 3)), DCEM(n_samples=20, n_elite=4, n_iters=2)
    noise = torch.randn(2, 5, 20, 6)
    plans = [MPC(one, horizon=3, solver=solver)(state, noise=noise) for one in (model, FrozenRollout(model))]
    torch.testing.assert_close(plans[1].actions, plans[0].actions)


def test_nothing_but_actions_gets_a_gradient() -> None:
    model = RSSM(3, 2, RSSMConfig(hidden=4, width=4))
    actions = torch.zeros(1, 5, 4, 2, requires_grad=True)
    FrozenRollout(model).sequence_cost(torch.zeros(1, model.state_dim), actions).sum().backward()
    assert actions.grad is not None
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.usefixtures("double")
def test_the_reward_head_may_learn_beside_them() -> None:
    config = RSSMConfig(hidden=5, width=6, members=3, pessimism=0.7, residual=True, activation="gelu")
    model = RSSM(3, 2, config, Generator().manual_seed(0))
    state, actions = torch.randn(3, model.state_dim), torch.randn(3, 7, 4, 2, requires_grad=True)
    got = FrozenRollout(model, learn_reward=True).sequence_cost(state, actions).sum()
    expected = rollout(model, state.unsqueeze(-2).expand(3, 7, -1), actions).sum()
    wanted = [actions, *model.reward_head.parameters()]
    gradients = [torch.autograd.grad(cost, wanted, retain_graph=True) for cost in (got, expected)]
    torch.testing.assert_close(*gradients)
    others = [*model.gru.parameters(), *model.observation_head.parameters()]
    assert all(g is None for g in torch.autograd.grad(got, others, allow_unused=True))


def test_weights_that_change_before_the_backward_pass_are_noticed() -> None:
    model = RSSM(3, 2, RSSMConfig(hidden=4, width=4))
    actions = torch.zeros(1, 5, 4, 2, requires_grad=True)
    cost = FrozenRollout(model, learn_reward=True).sequence_cost(torch.zeros(1, model.state_dim), actions)
    with torch.no_grad():
        model.reward_head.weights[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        cost.sum().backward()


def test_actions_that_need_no_gradient_cost_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model = RSSM(3, 2, RSSMConfig(hidden=4, width=4))
    monkeypatch.delattr("dcem_lab.suite.rssm.fast.imagine._through_steps")
    imagined = FrozenRollout(model, learn_reward=True)
    imagined.sequence_cost(torch.zeros(1, model.state_dim), torch.zeros(1, 5, 4, 2)).sum().backward()
    assert all(p.grad is not None for p in model.reward_head.parameters())


def test_what_it_cannot_do_is_refused() -> None:
    imagined = FrozenRollout(RSSM(3, 2, RSSMConfig(hidden=4, width=4)))
    state, actions = torch.zeros(5, imagined.model.state_dim), torch.zeros(5, 6, 4, 2)
    with pytest.raises(ValueError, match=r"state must be \(\*B, 7\) and actions"):
        imagined.sequence_cost(state[:4], actions)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("learn_reward", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        RSSMConfig(hidden=5, width=6, members=3, pessimism=0.7, residual=True, activation="gelu"),
        RSSMConfig(hidden=4, width=6, layers=1, activation="elu"),
        RSSMConfig(hidden=4, width=6, members=2, pessimism=0.5, termination=True),
    ],
)
def test_rollouts_that_end_in_a_value_have_the_gradients_of_the_steps(
    config: RSSMConfig, learn_reward: bool
) -> None:
    generator = Generator().manual_seed(0)
    model = RSSM(3, 2, config, generator)
    weight = torch.randn(model.state_dim, generator=generator)

    def worth(state: torch.Tensor) -> torch.Tensor:
        return (state * weight).sin().sum(dim=-1)

    state = torch.randn(2, model.state_dim, generator=generator)
    actions = torch.randn(2, 7, 4, 2, generator=generator).requires_grad_()
    got = FrozenRollout(model, learn_reward).sequence_cost(state, actions, 0.9, worth)
    expected = rollout(model, state.unsqueeze(-2).expand(2, 7, -1), actions, 0.9, worth)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    above = torch.randn(2, 7, generator=generator)
    wanted = [actions, *(model.reward_head.parameters() if learn_reward else ())]
    found = [torch.autograd.grad(cost, wanted, above, retain_graph=True) for cost in (got, expected)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-10)


@pytest.mark.parametrize("termination", [False, True])
def test_a_model_in_another_precision_is_judged_in_that_of_the_actions(termination: bool) -> None:
    config = RSSMConfig(hidden=4, width=6, members=2, pessimism=0.5, termination=termination)
    generator = Generator().manual_seed(0)
    model = RSSM(3, 2, config, generator)
    start = model.initial(torch.randn(2, 3, generator=generator))
    actions = torch.randn(2, 7, 4, 2, generator=generator)

    def worth(state: torch.Tensor) -> torch.Tensor:
        assert state.dtype == actions.dtype
        return state.sum(dim=-1)

    expected = FrozenRollout(model).sequence_cost(start, actions, 0.9, worth)
    got = FrozenRollout(model.to(torch.bfloat16)).sequence_cost(start, actions, 0.9, worth)
    assert got.dtype == torch.float32 and not torch.equal(got, expected)
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)

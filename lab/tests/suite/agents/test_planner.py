"""The planner: batches, precision, and the optimum of a system that is known."""

from dataclasses import replace

import pytest
import torch
from torch import Generator

from dcem import MPC, Decoder
from dcem_lab.suite.agents import LearningConfig, ModelLearner, Planner, PlannerConfig
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM, RSSMConfig

SMALL = PlannerConfig(samples=30, elites=5, iterations=3, horizon=4)


def noise_for(config: PlannerConfig, batch: int, action_dim: int, generator: Generator) -> torch.Tensor:
    shape = (config.iterations, batch, config.samples, config.horizon * action_dim)
    return torch.randn(shape, generator=generator)


@pytest.mark.parametrize("members", [1, 3])
def test_planning_in_a_batch_equals_planning_one_by_one(
    members: int, double: None, generator: Generator
) -> None:
    model = RSSM(5, 2, RSSMConfig(hidden=8, width=8, members=members, pessimism=0.5))
    plan = Planner(model, SMALL)
    states = torch.randn(6, model.state_dim, generator=generator)
    noise = noise_for(SMALL, 6, 2, generator)
    one_by_one = [plan(states[i : i + 1], noise[:, i : i + 1]) for i in range(6)]
    torch.testing.assert_close(plan(states, noise), torch.cat(one_by_one))


def test_plans_stay_in_the_box_and_repeat_with_the_generator() -> None:
    model = RSSM(3, 2, RSSMConfig(hidden=8, width=8))
    generator = Generator()
    plan = Planner(model, SMALL, generator=generator)
    states = model.initial(torch.randn(4, 3))
    first, again = plan(states), plan(states)
    assert not torch.equal(first, again)
    assert first.abs().max() <= 1
    generator.manual_seed(3)
    first = plan(states)
    generator.manual_seed(3)
    assert torch.equal(first, plan(states))


def test_a_planner_keeps_its_weights_until_told(generator: Generator) -> None:
    model = RSSM(3, 1, RSSMConfig(hidden=8, width=8))
    states, noise = model.initial(torch.randn(4, 3)), noise_for(SMALL, 4, 1, generator)
    plan = Planner(model, SMALL)
    before = plan(states, noise)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.neg_()
    assert torch.equal(plan(states, noise), before)
    plan.refresh()
    assert torch.equal(plan(states, noise), Planner(model, SMALL)(states, noise))
    assert not torch.equal(plan(states, noise), before)


@pytest.mark.parametrize("state_dim", [0, 16])
def test_a_latent_planner_equals_mpc_with_the_decoder(state_dim: int, generator: Generator) -> None:
    model = RSSM(4, 2, RSSMConfig(hidden=12, width=8))
    decoder = Decoder(3, SMALL.horizon, 2, hidden=(16,), state_dim=state_dim)
    config = replace(SMALL, tau=1.0)
    states = torch.randn(5, model.state_dim, generator=generator)
    noise = torch.randn(SMALL.iterations, 5, SMALL.samples, 3, generator=generator)
    plan = Planner(model, config, decoder)
    mpc = MPC(model, SMALL.horizon, solver=config.solver(), decoder=decoder)
    torch.testing.assert_close(plan(states, noise), mpc(states, noise=noise).action.detach())
    before = plan(states, noise)
    with torch.no_grad():
        decoder.net[-1].bias += 1
    assert torch.equal(plan(states, noise), before)
    plan.refresh()
    torch.testing.assert_close(plan(states, noise), mpc(states, noise=noise).action.detach())


def test_a_model_of_a_linear_system_plans_the_optimum() -> None:
    """x' = x + u / 2 with reward −x'²: the best first action is −2x, clipped to the box, at any horizon."""
    model = RSSMConfig(
        hidden=16,
        width=32,
        distance=3,
        activation="elu",
        residual=True,
        predict_std=False,
        sample=False,
        loss="mse",
        reward_weight=10.0,
    )
    config = LearningConfig(batch=50, length=6, lr=5e-3, eps=1e-8, average=0.98)
    generator = Generator().manual_seed(0)
    replay = ReplayBuffer(n_envs=200, capacity=11, observation_size=1, action_size=1)
    x = 2 * torch.rand(200, 1, generator=generator) - 1
    for t in range(10):
        following = (x + torch.rand(200, 1, generator=generator) - 0.5).clamp(-1, 1)
        ended = torch.full((200,), t == 9)
        replay.add(x, 2 * (following - x), -following.square().squeeze(-1), following, ended)
        x = following
    learner = ModelLearner(RSSM(1, 1, model, generator), replay, config, generator)
    for _ in range(500):
        learner.update()

    planner = PlannerConfig(samples=200, elites=20, iterations=8, horizon=2)
    plan = Planner(learner.average, planner, generator=generator)
    start = torch.linspace(-0.9, 0.9, 50).unsqueeze(-1)
    error = plan(learner.average.initial(start)) - (-2 * start).clamp(-1, 1)
    assert error.square().mean().sqrt() < 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"elites": 2000}, "elites must be from 1 to samples=1000, got 2000"),
        ({"sigma": 0.0}, "sigma must be above 0"),
        ({"dtype": "int8"}, "dtype must be one of float32, float16, bfloat16, got 'int8'"),
    ],
)
def test_bad_settings_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlannerConfig(**changes)

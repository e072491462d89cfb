"""The decoder's update with everything captured."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Generator

from dcem.control.rollout import rollout
from dcem_lab.suite.agents import DecoderConfig, DecoderLearner, Planet, PlannerConfig
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.rssm.fast.imagine import FrozenRollout, StepByStep
from toy.agent import make_planet

pytestmark = pytest.mark.gpu

MODEL = RSSMConfig(hidden=32, width=24, distance=4, members=3, pessimism=0.5, residual=True)
PLANNER = PlannerConfig(samples=50, elites=5, iterations=3, horizon=4, tau=1.0)
DECODER = DecoderConfig(latent_dim=3, hidden=(32, 32), states=8, context=5, start_share=0.25, average=0.9)


@pytest.mark.parametrize("activation", ["relu", "elu", "gelu"])
def test_rollouts_of_a_frozen_model_are_those_of_its_steps(activation: str) -> None:
    model = RSSM(5, 2, replace(MODEL, activation=activation), Generator().manual_seed(0)).cuda()
    state = torch.randn(6, model.state_dim, device="cuda")
    actions = torch.randn(6, 50, 4, 2, device="cuda", requires_grad=True)
    got = FrozenRollout(model).sequence_cost(state, actions)
    expected = rollout(model, state.unsqueeze(-2).expand(6, 50, -1), actions)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    gradients = [torch.autograd.grad(cost.sum(), actions, retain_graph=True)[0] for cost in (got, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("states", "samples", "obs_dim", "hidden", "width", "members", "activation"),
    [
        (6, 50, 17, 200, 200, 3, "gelu"),
        (32, 1, 24, 200, 200, 3, "gelu"),
        (32, 100, 17, 200, 200, 3, "gelu"),
        (3, 33, 5, 130, 155, 1, "elu"),
        (2, 70, 58, 130, 200, 2, "gelu"),
    ],
)
def test_half_precision_gives_nearly_the_same_gradients(
    states: int, samples: int, obs_dim: int, hidden: int, width: int, members: int, activation: str
) -> None:
    config = replace(MODEL, hidden=hidden, width=width, members=members, activation=activation)
    model = RSSM(obs_dim, 6, config, Generator().manual_seed(0)).cuda()
    state = torch.randn(states, model.state_dim, device="cuda") / 2
    actions = (2 * torch.rand(states, samples, 12, 6, device="cuda") - 1).requires_grad_()
    # From tiny to large: every trajectory's gradient keeps its precision.
    above = (
        torch.randn(states, samples, device="cuda") * torch.logspace(-9, 0, states, device="cuda")[:, None]
    )
    learned = list(model.reward_head.parameters())
    found = []
    for dtype in (torch.float16, torch.float32):
        imagined = FrozenRollout(model, learn_reward=True, dtype=dtype)
        cost = imagined.sequence_cost(state, actions)
        found.append([cost.detach(), *torch.autograd.grad(cost, [actions, *learned], above)])
    assert not isinstance(FrozenRollout(model, dtype=torch.float16)._engine, StepByStep)
    for got, expected in zip(*found, strict=True):
        assert (got - expected).norm() < 0.01 * expected.norm()
    off, size = ((x.flatten(1).norm(dim=1)) for x in (found[0][1] - found[1][1], found[1][1]))
    assert (off < 0.02 * size).all()


def test_a_captured_update_in_half_precision_sees_the_model_change() -> None:
    config = replace(MODEL, hidden=128, width=128)
    model = RSSM(5, 2, config, Generator().manual_seed(0)).requires_grad_(False).cuda()
    replay = ReplayBuffer(4, 100, 5, 2, "cuda", shortest_episode=5)
    for t in range(90):
        x = torch.randn(4, 5, device="cuda")
        replay.add(x, x[:, :2], x.sum(-1), x, torch.full((4,), t % 30 == 29))
    settings = replace(DECODER, lr=1e-9)
    learner = DecoderLearner(
        settings.decoder(model, 4, seed=0).cuda(), model, replay, settings,
        replace(PLANNER, dtype="float16"), Generator("cuda").manual_seed(0),
    )  # fmt: skip

    def cost() -> float:
        for _ in range(10):
            learner.update()
        return learner.metrics()["cost"]

    cost()
    before = cost()
    model.reward_head.biases[-1].add_(10)
    assert cost() == pytest.approx(before - 10 * PLANNER.horizon, abs=2)


@pytest.mark.parametrize("backward", ["unroll", "checkpoint", "truncate", "prune", "detach"])
def test_captured_updates_learn_what_eager_ones_do(backward: str) -> None:
    learners = []
    for captured in (True, False):
        generator = Generator("cuda").manual_seed(0)
        replay = ReplayBuffer(4, 100, 5, 2, "cuda", shortest_episode=5)
        x = torch.zeros(4, 5, device="cuda")
        for t in range(90):
            u = torch.rand(4, 2, device="cuda", generator=generator) * 2 - 1
            following = 0.9 * x + 0.1 * u.repeat(1, 3)[:, :5]
            replay.add(x, u, following.sum(-1), following, torch.full((4,), t % 30 == 29))
            x = following
        model = RSSM(5, 2, MODEL, Generator().manual_seed(0)).requires_grad_(False).cuda()
        config = replace(DECODER, backward=backward)
        decoder = config.decoder(model, 4, seed=0).cuda()
        before = copy.deepcopy(decoder)
        learner = DecoderLearner(decoder, model, replay, config, PLANNER, generator)
        for _ in range(20):
            if captured:
                learner.update()
            else:
                with torch.no_grad():
                    learner._update()
                learner.updates += 1
        assert all((a != b).any() for a, b in zip(decoder.parameters(), before.parameters(), strict=True))
        learners.append(learner)
    costs = [learner.metrics()["cost"] for learner in learners]
    assert costs[0] == pytest.approx(costs[1], rel=0.2, abs=0.02)


def test_the_agent_runs_and_goes_on_from_its_state() -> None:
    def make() -> Planet:
        return make_planet(
            model=MODEL, planner=replace(PLANNER, dtype="float16"),
            decoder=replace(DECODER, updates_per_step=0.5), envs=4, episode=10, device="cuda",
            batch=8, length=8, seed_episodes=4, replay_steps=2000,
        )  # fmt: skip

    agent = make()
    for _ in range(60):
        agent.step()
    assert agent.learners["decoder"].updates == 25
    assert all(abs(value) < 1e4 for value in agent.learners["decoder"].metrics().values())
    other = make()
    other.load_state_dict(agent.state_dict())
    for _ in range(20):
        other.step()
    assert other.learners["decoder"].updates == 35
    assert all(p.isfinite().all() for p in other.decoder.parameters())

"""The decoder's update with everything captured."""

import copy
import functools
from dataclasses import replace

import pytest
import torch
from torch import Generator

from dcem.agents import DecoderConfig, DecoderLearner, Planet, PlanetConfig, PlannerConfig
from dcem.control.rollout import rollout
from dcem.envs.vector import ParallelEnv
from dcem.models import RSSM, RSSMConfig
from dcem.models.imagine import FrozenRollout
from dcem.rl.replay import ReplayBuffer
from toy.environment import Plane

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
    costs = [learner.read()["cost"] for learner in learners]
    assert costs[0] == pytest.approx(costs[1], rel=0.2, abs=0.02)


def test_the_agent_runs_and_goes_on_from_its_state() -> None:
    config = PlanetConfig(
        model=MODEL, planner=replace(PLANNER, dtype="float16"), batch=8, length=8, seed_episodes=4,
        replay_steps=2000, average=0.9,
    )  # fmt: skip

    def make() -> Planet:
        envs = ParallelEnv(functools.partial(Plane, 10), 4)
        return Planet(envs, config, seed=0, device="cuda", decoder=replace(DECODER, updates_per_step=0.5))

    agent = make()
    for _ in range(60):
        agent.step()
    assert agent.decoder_learner is not None
    assert agent.decoder_learner.updates == 25
    assert all(abs(value) < 1e4 for value in agent.decoder_learner.read().values())
    other = make()
    other.load_state_dict(agent.state_dict())
    for _ in range(20):
        other.step()
    assert other.decoder_learner is not None
    assert other.decoder_learner.updates == 35
    assert all(p.isfinite().all() for p in other.decoder.parameters())

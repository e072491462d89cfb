"""The agent with everything captured."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Generator

from dcem import Decoder
from dcem_lab.suite.agents import LearningConfig, ModelLearner, Planet, Planner, PlannerConfig
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from toy.agent import make_planet

pytestmark = pytest.mark.gpu

MODEL = RSSMConfig(hidden=128, width=136, distance=4, normalize=True, members=2, pessimism=0.5)
PLANNER = PlannerConfig(samples=64, elites=8, iterations=3, horizon=4, dtype="float16")
LEARNING = LearningConfig(batch=16, length=8, average=0.9, updates_per_step=1.5)


@pytest.mark.parametrize("samples", [64, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("latent", [False, True])
def test_a_captured_plan_equals_that_of_the_processor(dtype: str, samples: int, latent: bool) -> None:
    """Whichever precision and kernels, also after the weights have changed."""
    model = RSSM(5, 2, MODEL, Generator().manual_seed(0))
    decoder = Decoder(3, 4, 2, hidden=(32,)) if latent else None
    config = replace(PLANNER, samples=samples, iterations=2, dtype=dtype, tau=float(latent))
    reference = Planner(model, config, decoder)
    model_there, decoder_there = copy.deepcopy(model).cuda(), copy.deepcopy(decoder)
    if decoder_there is not None:
        decoder_there.cuda()
    plan = Planner(model_there, config, decoder_there)
    for scale in (1.0, 0.7):
        with torch.no_grad():
            for parameter in (*model.parameters(), *model_there.parameters()):
                parameter.mul_(scale)
        reference.refresh()
        plan.refresh()
        states = torch.randn(48, model.state_dim)
        noise = torch.randn(2, 48, samples, 3 if latent else 8)
        expected, got = reference(states, noise), plan(states.cuda(), noise.cuda()).cpu()
        # Rounding may swap an elite for another of nearly the same cost: the mean over many plans tells.
        assert (got - expected).abs().mean() < {"float32": 0.01, "float16": 0.05, "bfloat16": 0.15}[dtype]


def test_captured_updates_learn_what_eager_ones_do() -> None:
    losses = []
    for captured in (True, False):
        generator = Generator("cuda").manual_seed(0)
        replay = ReplayBuffer(4, 100, 5, 2, "cuda")
        x = torch.zeros(4, 5, device="cuda")
        for _ in range(90):
            u = torch.rand(4, 2, device="cuda", generator=generator) * 2 - 1
            following = 0.9 * x + 0.1 * u.repeat(1, 3)[:, :5]
            replay.add(x, u, following.sum(-1), following, torch.zeros(4, dtype=torch.bool))
            x = following
        learner = ModelLearner(
            RSSM(5, 2, MODEL, Generator().manual_seed(0)).cuda(), replay, LEARNING, generator
        )
        if not captured:
            learner._captured, learner._draw = learner._update, learner._draw_anew
        for _ in range(300):
            learner.update()
        learner.metrics()
        learner.update()
        losses.append(learner.metrics()["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.3, abs=0.3)


def test_the_agent_runs_and_goes_on_from_its_state() -> None:
    def make() -> Planet:
        return make_planet(
            model=MODEL, planner=PLANNER, learning=LEARNING, envs=4, episode=10, device="cuda",
            seed_episodes=4, replay_steps=2000,
        )  # fmt: skip

    agent = make()
    for _ in range(60):
        agent.step()
    figures = agent.learners["model"].metrics()
    assert agent.learners["model"].updates == 75
    assert all(abs(value) < 1e4 for value in figures.values())
    assert {"plan", "update", "env", "record"} <= agent.learners.stopwatch.read().keys()
    other = make()
    other.load_state_dict(agent.state_dict())
    for _ in range(20):
        other.step()
    assert other.learners["model"].updates == 105
    assert all(p.isfinite().all() for p in other.model.parameters())

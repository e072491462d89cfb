"""Values at the end of plans, in fused kernels and captured."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from dcem.control import rollout
from dcem_lab.suite.agents import (
    DecoderConfig,
    LearningConfig,
    Planet,
    Planner,
    PlannerConfig,
    Value,
    ValueConfig,
    ValueLearner,
)
from dcem_lab.suite.agents.guide import Guide
from dcem_lab.suite.agents.planner import GUIDED
from dcem_lab.suite.agents.search import WeightedElites
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.rssm.fast.imagine import FrozenRollout, StepByStep
from toy.agent import make_planet

pytestmark = pytest.mark.gpu

MODEL = RSSMConfig(
    hidden=200, width=200, members=3, pessimism=0.5, residual=True, activation="gelu", normalize=True,
    predict_std=False, sample=False, loss="rmse", distance=4,
)  # fmt: skip
VALUE = ValueConfig(gamma=0.98, width=64, batch=64, updates_per_step=3.0, early_share=0.25)
HALF = 4e-3


def make(obs_dim: int = 17, action_dim: int = 6, **config: object) -> tuple[RSSM, Value]:
    model = RSSM(obs_dim, action_dim, replace(MODEL, **config), Generator().manual_seed(0)).cuda()
    value = Value(obs_dim, action_dim, width=64, gamma=0.98, generator=Generator().manual_seed(0)).cuda()
    return model, value


@pytest.mark.parametrize(("states", "samples", "hidden"), [(1, 152, 200), (16, 152, 200), (3, 33, 130)])
@pytest.mark.parametrize("members", [1, 3])
def test_fused_costs_that_end_in_a_value(states: int, samples: int, hidden: int, members: int) -> None:
    from dcem_lab.suite.rssm.fast.rollout_triton import FusedRollout

    model, value = make(hidden=hidden, members=members)
    guide = Guide(value, model, 0.5)
    state = model.initial(torch.randn(states, 17, device="cuda"))
    actions = 2 * torch.rand(states, samples, 6, 6, device="cuda") - 1

    def end(last: Tensor) -> Tensor:
        return -guide.worth(last)

    with torch.no_grad():
        got = FusedRollout(model).sequence_cost(state, actions, 0.98, end)
        expected = rollout(model, state.unsqueeze(-2).expand(states, samples, -1), actions, 0.98, end)
    assert ((got - expected).norm() / expected.norm()) < HALF


@pytest.mark.parametrize(("rows", "features", "actions"), [(7, 17, 6), (2432, 18, 6), (300, 40, 20)])
@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("members", [1, 3])
def test_fused_critics_say_what_the_critics_say(
    rows: int, features: int, actions: int, width: int, members: int
) -> None:
    from dcem_lab.suite.agents.judge_triton import FusedJudge

    model = RSSM(features, actions, replace(MODEL, hidden=16, width=16, members=members)).cuda()
    value = Value(features, actions, width=width, generator=Generator().manual_seed(0)).cuda()
    guide, judge = Guide(value, model, 0.5), FusedJudge(value, 0.5)
    states = torch.randn(rows, model.state_dim, device="cuda")
    for scale in (1.0, 0.7):  # also after the weights have changed
        with torch.no_grad():
            for parameter in value.parameters():
                parameter.mul_(scale).add_(0.01)
            judge.refresh()
            expected = guide.worth(states)
        got = judge(guide.model.observed(states))
        assert (got - expected).norm() < HALF * expected.norm()


@pytest.mark.parametrize("case", ["usual", "far", "constant", "some NaN", "all NaN", "few finite"])
def test_weights_in_one_launch_are_those_of_many(case: str) -> None:
    values = torch.randn(5, 152)
    if case == "far":
        values = 1e3 * values - 4e3
    elif case == "constant":
        values = torch.full_like(values, 3.1)
    elif case != "usual":
        share = {"some NaN": 0.3, "all NaN": 1.0, "few finite": 0.95}[case]
        values = torch.where(torch.rand_like(values) < share, torch.nan, values)
    search = WeightedElites(n_samples=128, n_elite=20, temperature=0.17, normalize=True)
    assert search._in_one_launch(values.cuda())
    torch.testing.assert_close(search.weights(values.cuda(), 0).cpu(), search.weights(values, 0))


@pytest.mark.parametrize("learn_reward", [False, True])
def test_half_precision_gives_nearly_the_same_gradients(learn_reward: bool) -> None:
    model, value = make()
    guide = Guide(value.requires_grad_(False), model, 0.5)
    state = model.initial(torch.randn(8, 17, device="cuda"))
    actions = (2 * torch.rand(8, 100, 6, 6, device="cuda") - 1).requires_grad_()
    above = torch.randn(8, 100, device="cuda") * torch.logspace(-9, 0, 8, device="cuda")[:, None]
    wanted = [actions, *(model.reward_head.parameters() if learn_reward else ())]
    found = []
    for dtype in (torch.float16, torch.float32):
        imagined = FrozenRollout(model, learn_reward, dtype)
        cost = imagined.sequence_cost(state, actions, 0.98, lambda last: -guide.worth(last))
        found.append([cost.detach(), *torch.autograd.grad(cost, wanted, above)])
    assert not isinstance(FrozenRollout(model, dtype=torch.float16)._engine, StepByStep)
    for got, expected in zip(*found, strict=True):
        assert (got - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize(
    ("dtype", "iterations"), [("float32", 6), ("float16", 1), ("float32", 0), ("float16", 0)]
)
def test_a_captured_plan_equals_that_of_the_processor(dtype: str, iterations: int) -> None:
    """Also after the weights have changed."""
    there, value_there = make()
    here, value_here = copy.deepcopy(there).cpu(), copy.deepcopy(value_there).cpu()
    config = replace(GUIDED, dtype=dtype, iterations=iterations)
    reference, plan = Planner(here, config, value=value_here), Planner(there, config, value=value_there)
    # With the weights of an untrained network costs hardly differ, and rounding alone would order them.
    for scale in (3.0, 0.7):
        with torch.no_grad():
            for network in (here, there, value_here, value_there):
                for parameter in network.parameters():
                    parameter.mul_(scale)
        reference.refresh()
        plan.refresh()
        states = here.initial(torch.randn(32, 17))
        if iterations == 0:
            torch.testing.assert_close(plan(states.cuda()).cpu(), reference(states), atol=5e-3, rtol=0)
            continue
        noise = torch.randn(iterations, 32, 128, 36)
        expected, got = reference(states, noise), plan(states.cuda(), noise.cuda()).cpu()
        # Rounding swaps elites of nearly the same cost: most of them stay. In half precision for one
        # iteration, since each further one doubles how far plans are apart.
        apart = (got - expected).abs().amax(dim=-1)
        assert apart.median() < {"float32": 1e-3, "float16": 0.1}[dtype]


def test_new_noise_in_every_captured_plan() -> None:
    model, value = make()
    generator = Generator("cuda").manual_seed(0)
    plan = Planner(model, GUIDED, generator=generator, value=value)
    states = model.initial(torch.randn(4, 17, device="cuda"))
    first = plan(states)
    assert not torch.equal(plan(states), first)
    generator.manual_seed(0)
    assert torch.equal(plan(states), first)


@pytest.mark.parametrize("values", ["scalar", "two-hot"])
def test_captured_updates_learn_what_eager_ones_do(values: str) -> None:
    losses = []
    for captured in (True, False):
        generator = Generator("cuda").manual_seed(0)
        replay = ReplayBuffer(64, 12, 2, 1, "cuda", shortest_episode=4)
        for t in range(10):
            x = torch.rand(64, 2, device="cuda", generator=generator) * 2 - 1
            u = torch.rand(64, 1, device="cuda", generator=generator) * 2 - 1
            reward = -(u[:, 0] + x[:, 0] / 2).square()
            replay.add(x, u, reward, x, torch.full((64,), t == 9))
        model = RSSM(2, 1, RSSMConfig(hidden=8, width=8)).cuda()
        config = replace(VALUE, steps=1, gamma=0.0, lr=3e-3, values=values, early_steps=2, span=1.0)
        learner = ValueLearner(config.value(model, 0).cuda(), model, replay, config, generator)
        if not captured:
            learner._captured, learner._draw = learner._update, learner._draw_anew
        for _ in range(300):
            learner.update()
        learner.metrics()
        learner.update()
        losses.append(learner.metrics()["critic_loss"])
        x = torch.rand(100, 2, device="cuda") * 2 - 1
        assert (learner.average.actor(x)[:, 0] + x[:, 0] / 2).square().mean().sqrt() < 0.2
    assert losses[0] == pytest.approx(losses[1], rel=0.5, abs=0.05)


def test_captured_imagined_targets_are_those_of_eager_updates() -> None:
    found = []
    for captured in (True, False):
        model, _ = make(2, 1, hidden=16, width=16, termination=True)
        generator = Generator("cuda").manual_seed(0)
        replay = ReplayBuffer(64, 12, 2, 1, "cuda", shortest_episode=4)
        for t in range(10):
            x = torch.rand(64, 2, device="cuda", generator=generator) * 2 - 1
            replay.add(x, x[:, :1], x[:, 1], x, torch.full((64,), t == 9))
        config = replace(VALUE, targets="imagined", smoothing=0.0, early_share=0.0)
        learner = ValueLearner(config.value(model, 0).cuda(), model, replay, config, generator)
        if not captured:
            learner._captured, learner._draw = learner._update, learner._draw_anew
        for _ in range(300):
            learner.update()
        found.append(learner.metrics()["target"])
    assert found[0] == pytest.approx(found[1], rel=0.2, abs=0.05)


@pytest.mark.parametrize(("latent", "targets"), [(False, "replay"), (True, "replay"), (False, "imagined")])
def test_the_agent_runs_and_goes_on_from_its_state(latent: bool, targets: str) -> None:
    planner = replace(GUIDED, samples=64, elites=8, iterations=3, horizon=4, policy_plans=8)
    decoder = None
    if latent:
        planner = PlannerConfig(samples=50, elites=5, iterations=3, horizon=4, tau=0.2, dtype="float16")
        decoder = DecoderConfig(latent_dim=3, hidden=(32,), states=8, context=4, residual=True)

    def make() -> Planet:
        return make_planet(
            model=MODEL, planner=planner, decoder=decoder, value=replace(VALUE, targets=targets), envs=4,
            episode=10, device="cuda",
            learning=LearningConfig(batch=16, length=8, average=0.9, updates_per_step=1.5, early_chunks=0.25),
            seed_episodes=4, replay_steps=2000, policy_share=0.5, policy_steps=7,
        )  # fmt: skip

    agent = make()
    for _ in range(60):
        agent.step()
    assert agent.learners["value"].updates == 150
    assert all(abs(value) < 1e4 for value in agent.learners["value"].metrics().values())
    other = make()
    other.load_state_dict(agent.state_dict())
    for _ in range(20):
        other.step()
    assert other.learners["value"].updates == 210
    assert other.value is not None
    assert all(p.isfinite().all() for p in other.value.parameters())

"""The decoder's update: whose gradient it is, what it lowers, and which states it is made on."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Generator

from dcem import MPC, Decoder
from dcem_lab.suite.agents import (
    DecoderConfig,
    DecoderLearner,
    Offline,
    Planet,
    Planner,
    PlannerConfig,
    build_offline,
)
from dcem_lab.suite.agents.build import spread
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from toy.agent import make_planet

MODEL = RSSMConfig(hidden=8, width=8, distance=3, members=2, pessimism=0.5)
PLANNER = PlannerConfig(samples=12, elites=3, iterations=3, horizon=3, tau=1.0)
DECODER = DecoderConfig(latent_dim=2, hidden=(16,), states=6, context=4, average=0.9)


def filled_replay(episode: int = 10, final: bool = False) -> ReplayBuffer:
    """Observations that say where in an episode they are: (environment, step)."""
    replay = ReplayBuffer(2, 60, 2, 2, shortest_episode=2)
    generator = Generator().manual_seed(0)
    for t in range(36):
        steps = torch.tensor([t % episode, t % episode])
        x = torch.stack([torch.arange(2.0), steps.float()], dim=-1)
        u = torch.rand(2, 2, generator=generator) * 2 - 1
        ended = steps == episode - 1
        replay.add(x, u, torch.zeros(2), x + torch.tensor([0.0, 1.0]), ended, ended & final)
    return replay


def make_learner(
    config: DecoderConfig = DECODER,
    planner: PlannerConfig = PLANNER,
    model: RSSMConfig = MODEL,
    replay: ReplayBuffer | None = None,
) -> DecoderLearner:
    world = RSSM(2, 2, model, Generator().manual_seed(1)).requires_grad_(False)
    decoder = config.decoder(world, planner.horizon, seed=2)
    replay = replay or filled_replay()
    return DecoderLearner(decoder, world, replay, config, planner, Generator().manual_seed(3))


@torch.no_grad()
def planned_cost(learner: DecoderLearner, planner: PlannerConfig, decoder: Decoder | None) -> float:
    """By a controller of our own, from states that are the same for all."""
    learner.generator.manual_seed(4)
    states = torch.cat([learner.states() for _ in range(10)])
    mpc = MPC(learner.model, 3, solver=planner.solver(), decoder=decoder)
    return mpc(states, generator=learner.generator).cost.mean().item()


@pytest.mark.parametrize("backward", ["unroll", "checkpoint", "truncate", "prune", "detach"])
def test_the_gradient_reaches_the_decoder_and_nothing_else(backward: str) -> None:
    learner = make_learner(replace(DECODER, backward=backward))
    before = {name: x.clone() for name, x in learner.model.state_dict().items()}
    decoder = [p.detach().clone() for p in learner.decoder.parameters()]
    learner.update()
    assert all(torch.equal(x, before[name]) for name, x in learner.model.state_dict().items())
    assert all(p.grad is None for p in learner.model.parameters())
    for new, old in zip(learner.decoder.parameters(), decoder, strict=True):
        assert (new != old).any()


def test_checkpointing_changes_memory_and_not_the_gradient() -> None:
    learners = [make_learner(replace(DECODER, backward=mode)) for mode in ("unroll", "checkpoint")]
    for learner in learners:
        learner.update()
    for ours, theirs in zip(*(learner.decoder.parameters() for learner in learners), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("conditioned", [False, True])
def test_updates_lower_what_plans_cost(conditioned: bool) -> None:
    learner = make_learner(replace(DECODER, conditioned=conditioned, lr=1e-2, states=16))
    before = planned_cost(learner, PLANNER, learner.decoder)
    for _ in range(60):
        learner.update()
    assert learner.metrics().keys() == {"cost", "gradient_norm"}
    after = planned_cost(learner, PLANNER, learner.average)
    best = planned_cost(learner, PlannerConfig(samples=200, elites=20, iterations=8, horizon=3), None)
    assert best < before
    assert after < (before + best) / 2


def test_states_are_what_the_model_observes_along_a_chunk() -> None:
    learner = make_learner()
    states = learner.states()
    oracle = make_learner()
    chunk = oracle.replay.sample(6, 4, oracle.generator)
    for i in range(6):
        state = oracle.model.initial(chunk.observations[i, 0])
        for t in range(4):
            state = oracle.model.observe(state, chunk.actions[i, t], chunk.observations[i, t + 1])
        torch.testing.assert_close(states[i], state)
    assert not states.requires_grad


def test_a_share_of_the_states_comes_from_where_episodes_begin() -> None:
    learner = make_learner(replace(DECODER, states=40, start_share=0.5))
    steps = torch.cat([learner.model.decode(learner.states())[:, 1].reshape(2, 20) for _ in range(20)], dim=1)
    assert steps[0].min() >= 4  # the ends of chunks of four steps
    assert set(steps[1].round().int().tolist()) == {0, 1, 2, 3, 4}


def test_no_state_is_one_that_an_episode_ended_in() -> None:
    # Episodes of three steps, shorter than the context of four.
    learner = make_learner(
        replace(DECODER, states=200),
        model=replace(MODEL, termination=True),
        replay=filled_replay(episode=3, final=True),
    )
    states = learner.states()
    assert set(learner.model.decode(states)[:, 1].round().int().tolist()) == {2}
    learner.update()
    assert all(x.isfinite().all() for x in learner.decoder.parameters())


def test_states_can_be_the_newest_alone() -> None:
    learner = make_learner(replace(DECODER, states=200, recent=5))
    # Each environment has come to step 6 of an episode of ten: states are those of the ends of chunks.
    assert set(learner.model.decode(learner.states())[:, 1].round().int().tolist()) == {4, 5}


def test_planning_for_many_states_is_planning_for_each() -> None:
    model = RSSM(2, 2, MODEL, Generator().manual_seed(1))
    decoder = replace(DECODER, conditioned=True).decoder(model, 3, seed=2)
    mpc = MPC(model, 3, solver=PLANNER.solver(), decoder=decoder)
    states, noise = torch.randn(5, model.state_dim), torch.randn(3, 5, 12, 2)
    together = mpc(states, noise=noise)
    for i in range(5):
        alone = mpc(states[i], noise=noise[:, i])
        torch.testing.assert_close(together.actions[i], alone.actions)
        torch.testing.assert_close(together.cost[i], alone.cost)


def make_agent(**changes: object) -> Planet:
    decoder = replace(DECODER, updates_per_step=0.5)
    return make_planet(model=MODEL, planner=PLANNER, decoder=decoder, seed_episodes=2, **changes)


def test_an_agent_plans_with_the_decoder_and_teaches_it() -> None:
    agent = make_agent()
    for _ in range(16):
        agent.step()
    assert agent.learners["model"].updates == 8  # after two episodes of eight random steps
    assert agent.learners["decoder"].updates == 4
    assert agent.planner._mpc.search_dim == 2
    # What plans are the averages, after every step.
    for planned, learned in zip(
        agent.planner._mpc.decoder.parameters(), agent.decoder.parameters(), strict=True
    ):
        assert torch.equal(planned, learned)


def test_seed_episodes_can_be_planned_over_action_sequences() -> None:
    agent = make_agent(noise=0.0, seed_planner=PLANNER)
    plan = Planner(agent.model, PLANNER, generator=Generator().manual_seed(spread(0)["plan"]))
    expected = plan(agent.collector.state_dict()["states"])
    for _ in range(16):
        agent.step()
    torch.testing.assert_close(agent.collector.replay.state_dict()["actions"][:, 0], expected)
    assert agent.learners["model"].updates == 8  # after two episodes of eight steps


def test_an_agent_with_experience_needs_no_seed_episodes() -> None:
    agent = make_agent(replay=filled_replay().state_dict())
    written = agent.collector.replay.state_dict()["written"].clone()
    agent.step()
    assert agent.learners["model"].updates == 1
    # The open episode has ended where the new one begins: no chunk joins the two.
    chunk = agent.collector.replay.sample(500, 5, Generator().manual_seed(0))
    assert torch.equal(agent.collector.replay.state_dict()["written"], written + 1)
    jumps = chunk.observations[:, 1:, 1] - chunk.observations[:, :-1, 1]
    torch.testing.assert_close(jumps, torch.ones_like(jumps))


def test_offline_learning_goes_on_from_its_state() -> None:
    def make() -> Offline:
        model = RSSM(2, 2, MODEL, Generator().manual_seed(1))
        config = replace(DECODER, updates_per_step=1.5)
        return build_offline(model, filled_replay().state_dict(), config, PLANNER, seed=0)

    one, other = make(), make()
    for _ in range(3):
        one.step()
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for agent in (one, other):
        agent.step()
        assert agent["decoder"].updates == 6
    for a, b in zip(one.decoder.parameters(), other.decoder.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latent_dim": 0}, "latent_dim must be at least 1, got 0"),
        ({"hidden": (8, 0)}, r"hidden must be values at least 1, got \(8, 0\)"),
        ({"lr": 0.0}, "lr must be above 0, got 0.0"),
        ({"start_share": 1.5}, "start_share must be at least 0 and at most 1, got 1.5"),
        ({"recent": 20}, "recent must be 0 or above context=20, got 20"),
        ({"backward": "adjoint"}, "backward must be one of unroll, checkpoint, truncate, prune, detach"),
        ({"kept": 0.0}, "kept must be above 0 and at most 1, got 0.0"),
    ],
)
def test_bad_settings_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecoderConfig(**changes)

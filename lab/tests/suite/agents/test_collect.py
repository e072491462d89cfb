"""Collecting and controlling: what is remembered is what happened."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from dcem_lab.suite.agents import Collector, Controller, PlannerConfig
from dcem_lab.suite.agents.controller import follow, step_environments
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from toy.environment import GAIN, Plane

E = 3
Plan = Callable[[Tensor], Tensor]


def make_model(**changes: bool) -> RSSM:
    return RSSM(2, 2, RSSMConfig(hidden=8, width=8, members=2, **changes), Generator().manual_seed(0))


def towards_zero(states: Tensor) -> Tensor:
    """A planner that needs no search: the observation is at the end of a state."""
    return -states[:, -2:]


def collect(
    noise: Tensor,
    steps: int,
    length: int | None = 5,
    final: bool = False,
    correlation: float = 0.0,
    **model: bool,
) -> Collector:
    envs = ParallelEnv(functools.partial(Plane, length, final=final), E)
    replay = ReplayBuffer(E, 100, 2, 2, shortest_episode=1)
    random = Generator().manual_seed(0)
    collector = Collector(envs, make_model(**model), replay, noise, random, correlation)
    collector.restart(seed=7)
    advance(collector, steps)
    return collector


def advance(collector: Collector, steps: int, plan: Plan | None = towards_zero) -> list[np.ndarray]:
    taken = []
    for _ in range(steps):
        taken.append(collector.act(plan))
        collector.record(step_environments(collector.envs, taken[-1]))
    return taken


def test_episodes_in_the_replay_buffer_follow_the_dynamics() -> None:
    collector = collect(torch.full((E,), 0.3), steps=12)
    assert collector.episodes == 2 * E
    # Two episodes of five steps are over, with a place for the observation at the end of each.
    observations, actions, rewards = (x[:, :12].unflatten(1, (2, 6)) for x in collector.replay.state[:3])
    following, actions, rewards = observations[:, :, 1:], actions[:, :, :5], rewards[:, :, :5]
    torch.testing.assert_close(following, observations[:, :, :-1] + GAIN * actions)
    torch.testing.assert_close(rewards, -following.square().sum(-1))
    np.testing.assert_allclose(collector.returns, rewards[:, 1].sum(-1), rtol=1e-5)


@pytest.mark.parametrize("final", [False, True])
def test_terminations_are_remembered_and_time_limits_are_not(final: bool) -> None:
    collector = collect(torch.zeros(E), steps=8, final=final)
    chunk = collector.replay.sample(200, 5, Generator().manual_seed(0))
    assert torch.equal(chunk.terminated[:, -1], torch.full((200,), final))
    assert not chunk.terminated[:, :-1].any()


def test_the_reward_scale_learns_from_what_is_earned() -> None:
    collector = collect(torch.full((E,), 0.3), steps=10, scale_rewards=True)
    earned = collector.replay.sample(5000, 1, Generator().manual_seed(0)).rewards
    unit = collector.model.reward_scale.unit
    torch.testing.assert_close(unit, earned.square().mean().sqrt(), rtol=0.1, atol=0)


def test_states_are_those_of_a_filter_over_the_episode() -> None:
    collector = collect(torch.full((E,), 0.3), steps=5)
    taken = advance(collector, 3)
    state = collector.state_dict()
    model, x = collector.model, state["observations"]
    for action in reversed(taken):  # the dynamics can be run backwards
        x = x - GAIN * torch.from_numpy(action)
    expected = model.initial(x)
    for action in map(torch.from_numpy, taken):
        x = x + GAIN * action
        expected = model.observe(expected, action, x)
    torch.testing.assert_close(state["states"], expected)


def test_a_new_episode_starts_a_new_state() -> None:
    model = make_model()
    states, actions, observations = torch.randn(2, model.state_dim), torch.zeros(2, 2), torch.randn(2, 2)
    followed = follow(model, states, actions, observations, torch.tensor([True, False]))
    torch.testing.assert_close(followed[0], model.initial(observations)[0])
    torch.testing.assert_close(followed[1], model.observe(states, actions, observations)[1])


def test_noise_is_each_environments_own() -> None:
    scales = torch.tensor([0.0, 0.01, 0.1])
    collector = collect(scales, steps=0)
    half = torch.full((E, 2), 0.5)
    added = torch.stack([torch.from_numpy(collector.act(lambda states: half)) - 0.5 for _ in range(500)])
    assert added[:, 0].abs().max() == 0
    deviations = added.transpose(0, 1).flatten(1).std(dim=1)
    torch.testing.assert_close(deviations, scales, rtol=0.1, atol=0.0)


def test_correlated_noise_lasts_and_is_as_large() -> None:
    collector = collect(torch.full((E,), 0.1), steps=0, correlation=0.9)
    middle = torch.zeros(E, 2)
    added = np.stack([collector.act(lambda states: middle) for _ in range(5000)])
    now, then = added[1:].ravel(), added[:-1].ravel()
    assert np.std(now) == pytest.approx(0.1, rel=0.1)
    assert np.corrcoef(now, then)[0, 1] == pytest.approx(0.9, abs=0.03)


def test_correlated_random_actions_are_uniform_too() -> None:
    taken = np.stack(advance(collect(torch.zeros(E), steps=0, correlation=0.8), 4000, plan=None))
    shares, _ = np.histogram(taken, bins=4, range=(-1, 1))
    np.testing.assert_allclose(shares / taken.size, 0.25, atol=0.03)
    assert np.corrcoef(taken[1:].ravel(), taken[:-1].ravel())[0, 1] > 0.7


def test_noise_goes_on_after_a_checkpoint() -> None:
    """As it would have, with a generator that goes on too."""
    collector, other = (collect(torch.full((E,), 0.3), steps, correlation=0.9) for steps in (7, 2))
    other.load_state_dict(collector.state_dict())
    other._generator.set_state(collector._generator.get_state())
    np.testing.assert_array_equal(advance(collector, 5), advance(other, 5))


def test_random_actions_fill_the_box() -> None:
    taken = np.concatenate(advance(collect(torch.zeros(E), steps=0), 200, plan=None))
    assert np.abs(taken).max() <= 1
    assert taken.std() == pytest.approx(1 / np.sqrt(3), rel=0.1)


def test_a_collector_goes_on_from_its_state() -> None:
    collector = collect(torch.full((E,), 0.3), steps=7)
    saved, random = collector.state_dict(), collector._generator.get_state()
    expected = advance(collector, 6)
    other = collect(torch.full((E,), 0.3), steps=2)
    other.load_state_dict(saved)
    other._generator.set_state(random)
    np.testing.assert_array_equal(advance(other, 6), expected)
    assert other.returns == collector.returns
    assert other.episodes == collector.episodes


@pytest.mark.parametrize("at_once", [1, 3, 8])
def test_every_seed_gets_its_episode(at_once: int) -> None:
    config = PlannerConfig(samples=2, elites=1, iterations=1, horizon=1, sigma=1e-6)
    controller = Controller(make_model(), config)  # hardly moves: episodes are told by their seeds
    seeds = [3, 0, 5, 9, 6]
    envs = ParallelEnv(functools.partial(Plane, None), at_once)
    episodes = list(controller.play(envs, seeds))
    assert [episode.seed for episode in episodes] == seeds
    assert [episode.length for episode in episodes] == [1 + seed % 7 for seed in seeds]
    for episode in episodes:
        x, _ = Plane().reset(seed=episode.seed)
        assert episode.total == pytest.approx(-float(x @ x) * episode.length, rel=1e-3)


def test_a_controller_repeats_itself() -> None:
    controller = Controller(make_model(), PlannerConfig(samples=9, elites=3, iterations=2, horizon=2))
    envs = ParallelEnv(Plane, 2)
    first = list(controller.play(envs, [1, 2, 3]))
    assert first == list(controller.play(envs, [1, 2, 3]))
    with torch.no_grad():
        for parameter in controller.model.parameters():
            parameter.neg_()
    assert first != list(controller.play(envs, [1, 2, 3]))

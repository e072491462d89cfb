"""PPO through the planner: which parts learn, from which values, and a return that goes up."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Generator

from dcem import Decoder
from dcem_lab.suite.agents import Controller, PlannerConfig
from dcem_lab.suite.agents.finetune import Finetuner
from dcem_lab.suite.agents.finetune_config import FinetuneConfig
from dcem_lab.suite.agents.policy import Critic, Policy
from dcem_lab.suite.agents.soft_plans import PARTS
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.gae import advantages
from dcem_lab.suite.rssm import RSSM, RSSMConfig, multistep_loss
from dcem_lab.suite.trained import Trained
from toy.environment import Plane
from toy.finetuner import E, T, make_agent, make_model


def subsets() -> Iterator[tuple[str, ...]]:
    for size in range(1, len(PARTS) + 1):
        yield from combinations(PARTS, size)


@pytest.mark.parametrize("parts", list(subsets()))
def test_the_chosen_parts_learn_and_only_those(parts: tuple[str, ...]) -> None:
    agent = make_agent(parts, lr=1e-3)
    model, decoder = agent.policy.model, agent.policy.decoder
    assert decoder is not None
    named = {f"decoder.{name}": p for name, p in decoder.named_parameters()}
    named |= {f"model.{name}": p for name, p in model.named_parameters()}
    of = {"decoder": "decoder.", "reward": "model.reward_head", "transition": ("model.gru", "model.observ")}
    before = {name: p.detach().clone() for name, p in named.items()}
    buffers = [x.clone() for x in (*model.buffers(), *decoder.buffers())]
    agent.step()
    for part, prefix in of.items():
        for name, parameter in named.items():
            if name.startswith(prefix):
                assert torch.equal(parameter, before[name]) == (part not in parts), name
                assert parameter.requires_grad == (part in parts)
    assert all(map(torch.equal, buffers, (*model.buffers(), *decoder.buffers())))
    assert agent.policy.log_std.exp().tolist() == pytest.approx([0.1**0.5] * 2)


def test_the_standard_deviation_learns_if_it_should() -> None:
    agent = make_agent((), learn_std=True, std=0.5)
    before = copy.deepcopy(agent.policy.model.state_dict())
    agent.step()
    figures = agent.metrics()
    assert figures["std"] != pytest.approx(0.5, abs=1e-6)
    assert all(map(torch.equal, before.values(), agent.policy.model.state_dict().values()))


def test_only_the_value_network_learns_in_the_first_steps() -> None:
    agent = make_agent(value_steps=1)
    before = copy.deepcopy(agent.policy.state_dict())
    values = copy.deepcopy(agent.critic.state_dict())
    agent.step()
    assert "policy_loss" not in agent.metrics()
    assert all(map(torch.equal, before.values(), agent.policy.state_dict().values()))
    assert not any(map(torch.equal, values.values(), agent.critic.state_dict().values()))
    agent.step()
    assert "policy_loss" in agent.metrics()


@pytest.mark.parametrize(("weight", "fits"), [(1000.0, True), (0.0, False)])
def test_the_likelihood_can_be_mixed_in(weight: float, fits: bool) -> None:
    """With a weight that drowns PPO, the model fits what was gathered; without, nothing makes it."""
    agent = make_agent(("reward", "transition"), likelihood=weight, batch=8, length=6, lr=3e-3)
    first, e = agent.gatherer._observations.clone(), agent.gatherer.experience
    agent.step()
    observations = torch.cat([first[None], e.arrived]).transpose(0, 1)
    actions, rewards = e.actions.clamp(-1, 1).transpose(0, 1).clone(), e.rewards.T.clone()

    def misfit() -> float:
        return multistep_loss(agent.policy.model, observations, actions, rewards)[0].item()

    before = misfit()
    for _ in range(10):
        agent.step()
    assert (misfit() < 0.6 * before) == fits


def test_the_critic_is_worth_one_where_the_reward_is_one_for_ever() -> None:
    critic = Critic(4, gamma=0.9, width=8)
    states = torch.randn(5, 3, 4, requires_grad=True)
    torch.testing.assert_close(critic(states), 10 * critic.scaled(states))
    assert critic(states).shape == (5, 3)
    assert torch.autograd.grad(critic(states).sum(), states, allow_unused=True) == (None,)


def test_values_begin_with_the_mean_reward_for_ever() -> None:
    agent = make_agent(value_updates=0)
    for first in (True, False):
        agent.step()
        e = agent.gatherer.experience
        with torch.no_grad():
            per_step = agent.critic(e.states).mean() * 0.5  # 1 - gamma
        assert torch.isclose(per_step, e.rewards.mean(), atol=1e-5) == first


@pytest.mark.parametrize("final", [False, True])
def test_advantages_look_beyond_time_limits(final: bool) -> None:
    """Each step's by hand: they end with the episode, and with the value of the state reached there.

    After a final state nothing is worth anything.
    """
    agent = make_agent(episode=5, final=final, value_updates=0, lam=0.8)
    agent.step()
    e, critic = agent.gatherer.experience, agent.critic
    with torch.no_grad():
        values, beyond = critic(e.states), critic(e.reached)
    assert beyond[4].abs().min() > 1e-3
    if final:
        beyond[4] = 0.0
    errors = e.rewards + 0.5 * beyond - values
    by_hand = torch.zeros(T, E)
    for t in range(T):
        for k in range(t, T):
            by_hand[t] += (0.5 * 0.8) ** (k - t) * errors[k]
            if k == 4:  # the one end of an episode in these steps
                break
    expected = (by_hand - by_hand.mean()) / by_hand.std(correction=0)
    torch.testing.assert_close(agent._advantages, expected.flatten())
    torch.testing.assert_close(agent._targets * critic.scale, (by_hand + values).flatten())


def test_advantages_of_a_steady_reward_do_not_tell_where_the_episode_ends() -> None:
    agent = make_agent(gamma=0.99, value_updates=0)
    critic, states = agent.critic, torch.randn(40, 2, agent.policy.model.state_dim).mul_(1e-3)
    rewards, no = torch.full((40, 2), 2.4), torch.zeros(40, 2, dtype=torch.bool)
    critic.begin(states, rewards)
    with torch.no_grad():
        found = advantages(rewards, critic(states), critic(states), no, no, 0.99, 0.95)
    assert found.abs().max() < 0.5  # with values of zero it is 35 at the beginning


def test_an_agent_goes_on_from_its_state() -> None:
    """Bit for bit, in the middle of episodes."""

    def make() -> Finetuner:
        return make_agent(
            ("decoder", "transition"), learn_std=True, lr=1e-3, episode=5, value_steps=1,
            likelihood=0.1, batch=4, length=3,
        )  # fmt: skip

    agent = make()
    for _ in range(2):
        agent.step()
    saved = copy.deepcopy(agent.state_dict())
    other = make()
    other.load_state_dict(saved)
    for _ in range(2):
        for one in (agent, other):
            one.step()
        ours, theirs = (
            {name: x for name, x in one.metrics().items() if not name.startswith("ms/")}
            for one in (agent, other)
        )
        assert ours == theirs
    assert all(map(torch.equal, agent.policy.state_dict().values(), other.policy.state_dict().values()))


def test_a_run_that_diverges_says_so() -> None:
    """And not only after its checkpoint is spoiled."""
    agent = make_agent(value_steps=1, value_updates=0, minibatch=E * T, passes=1)
    agent.step()
    agent.policy.log_std.data.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="policy_loss is nan in step 1: fine-tuning diverged"):
        agent._improve()


def test_a_value_network_that_diverges_does_not_spoil_the_policy() -> None:
    agent = make_agent(value_lr=1e30, value_steps=0)
    before = copy.deepcopy(agent.policy.state_dict())
    with pytest.raises(FloatingPointError, match="the value of what was gathered is nan in step 0"):
        agent.step()
    assert all(map(torch.equal, before.values(), agent.policy.state_dict().values()))


def test_the_standard_deviation_has_its_own_rate() -> None:
    moved = []
    for rate in (1e-4, 1e-2):
        agent = make_agent((), learn_std=True, std_lr=rate, std=0.5)
        agent.step()
        moved.append((agent.policy.log_std.detach().exp() - 0.5).abs().mean().item())
    assert moved[1] > 20 * moved[0] > 0


def test_what_is_replayed_is_what_was_done() -> None:
    agent = make_agent(("reward",), likelihood=1.0, batch=4, length=3, std=2.0)
    agent.step()
    assert agent.gatherer.experience.actions.abs().max() > 1
    assert agent._replay is not None
    assert agent._replay.sample(50, 3).actions.abs().max() == 1


@pytest.mark.parametrize(("parts", "latent"), [(("decoder",), True), (("reward", "transition"), False)])
def test_the_return_goes_up(parts: tuple[str, ...], latent: bool) -> None:
    """A controller that knows nothing about its world learns to stay near the origin, through the planner."""
    model = RSSM(
        2, 2, RSSMConfig(hidden=16, width=16, activation="elu", residual=True), Generator().manual_seed(0)
    )
    torch.manual_seed(0)
    decoder = Decoder(2, 2, 2, hidden=(16,)) if latent else None
    planner = PlannerConfig(samples=16, elites=4, iterations=2, horizon=2, tau=1.0)
    config = FinetuneConfig(
        parts=parts, minibatch=40, lr=2e-3, gamma=0.5, std=0.3, value_width=32, value_updates=20,
        value_steps=1, backward="unroll",
    )  # fmt: skip
    make = functools.partial(Plane, 8)
    trained = Trained("plane", None, planner, model, decoder)
    agent = Finetuner(ParallelEnv(make, 10), trained, config, steps=8, seed=0)
    controller, tests = Controller(model, planner, decoder=decoder), ParallelEnv(make, 20)

    def score() -> float:
        return sum(episode.total for episode in controller.play(tests, range(1000, 1020))) / 20

    before = score()
    for _ in range(16):
        agent.step()
    assert before < -15
    assert score() > 0.4 * before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"parts": ("value",)},
            r"parts must be some of decoder, reward, transition, each once, got \['value'\]",
        ),
        ({"parts": ("reward", "reward")}, "parts must be some of"),
        ({"parts": ()}, "parts must be some of"),
        ({"passes": 0}, "passes must be at least 1, got 0"),
        ({"gamma": 1.0}, "gamma must be at least 0 and below 1"),
        ({"lam": 1.1}, "lam must be at least 0 and at most 1"),
        ({"std": 0.0}, "std must be above 0"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"value_steps": -1}, "value_steps must be at least 0"),
        ({"backward": "detach"}, "backward must be one of unroll, checkpoint, truncate, prune, got 'detach'"),
        ({"kept": 0.0}, "kept must be above 0"),
        ({"likelihood": 1.0, "parts": ("decoder",)}, "likelihood must be 0 where parts have neither"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FinetuneConfig(**changes)


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(ValueError, match="parts must not name the decoder of a controller that plans over"):
        make_agent(("decoder",), latent=False)
    with pytest.raises(ValueError, match=r"planner.tau must be positive"):
        Policy(make_model(), None, PlannerConfig())
    with pytest.raises(ValueError, match="minibatch must be at most 24, the transitions of a step, got 25"):
        make_agent(minibatch=25)
    with pytest.raises(ValueError, match=r"length must be from model.distance=2 to below actions=8"):
        make_agent(("reward",), likelihood=1.0, length=8)
    model, all_elite = make_model(), PlannerConfig(samples=5, elites=5, iterations=2, horizon=3, tau=1.0)
    policy = Policy(model, Decoder(2, 3, 2, hidden=(8,)), all_elite)
    policy.train_only(["decoder"])
    with pytest.raises(ValueError, match=r"planner\.elites must be below samples=5"):
        policy.train_only(["decoder", "reward"])

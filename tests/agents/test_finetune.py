"""PPO through the planner: ratios, gradients, staleness, and a return that goes up."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from dcem.agents import Controller, PlannerConfig
from dcem.agents.controller import follow
from dcem.agents.finetune import Finetuner
from dcem.agents.finetune_config import BACKWARD_MODES, FinetuneConfig
from dcem.agents.policy import PARTS, Critic, Policy
from dcem.control import Decoder
from dcem.distributions import gaussian
from dcem.distributions.moments import weighted_moments
from dcem.envs.vector import ParallelEnv
from dcem.models import RSSM, RSSMConfig, multistep_loss
from dcem.rl.gae import advantages
from toy.environment import GAIN, Plane

E, T = 3, 8
PLANNER = PlannerConfig(samples=12, elites=3, iterations=2, horizon=3, tau=1.0)
SMALL = {"minibatch": 10, "value_width": 16, "value_updates": 2, "value_steps": 0, "gamma": 0.5}
NO_LEARNING = 1e-30  # a learning rate that moves no float


def make_model() -> RSSM:
    config = RSSMConfig(
        hidden=8, width=8, distance=2, members=2, pessimism=0.5, predict_std=False, loss="mse"
    )
    return RSSM(2, 2, config, Generator().manual_seed(1))


def make_agent(
    parts: tuple[str, ...] = ("decoder",),
    latent: bool = True,
    seed: int = 0,
    episode: int = T,
    **changes: Any,
) -> Finetuner:
    torch.manual_seed(0)
    decoder = Decoder(2, PLANNER.horizon, 2, hidden=(8,)) if latent else None
    config = FinetuneConfig(parts=parts, **{**SMALL, **changes})
    envs = ParallelEnv(functools.partial(Plane, episode), E)
    return Finetuner(envs, make_model(), decoder, PLANNER, config, T, seed)


def subsets() -> Iterator[tuple[str, ...]]:
    for size in range(1, len(PARTS) + 1):
        yield from combinations(PARTS, size)


@pytest.mark.parametrize("latent", [True, False])
@pytest.mark.parametrize("mode", BACKWARD_MODES)
def test_every_ratio_is_one_before_anything_has_changed(mode: str, latent: bool) -> None:
    """To the bit: in both passes, the second of which comes with model states filtered again."""
    agent = make_agent(
        ("reward", "transition"), latent, lr=NO_LEARNING, passes=2, backward=mode, kept=0.5, episode=5
    )
    for _ in range(2):
        figures = agent.step()
        assert figures["ratio_error"] == figures["first_ratio_error"] == figures["divergence"] == 0.0
        assert figures["planned_apart"] < 1e-5
        assert figures["gradient_norm"] > 0


@pytest.mark.parametrize("mode", BACKWARD_MODES)
def test_ratios_are_one_though_other_kernels_run_without_gradients(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CUDA device the moments are another kernel there, which rounds in its own way."""

    def rounded_otherwise(u: Tensor, w: Tensor, sigma_min: float) -> tuple[Tensor, Tensor]:
        mean, sigma = weighted_moments(u, w, sigma_min)
        return (mean, sigma) if torch.is_grad_enabled() and w.requires_grad else (mean + 1e-4, sigma)

    monkeypatch.setattr(gaussian, "weighted_moments", rounded_otherwise)
    agent = make_agent(("decoder", "reward"), lr=NO_LEARNING, backward=mode, kept=0.5)
    figures = agent.step()
    assert figures["ratio_error"] == 0.0
    assert figures["planned_apart"] > 1e-5  # acting does without


@pytest.mark.parametrize("parts", [("decoder",), ("reward",), ("decoder", "reward")])
def test_a_frozen_transition_changes_no_gradient(double: None, parts: tuple[str, ...]) -> None:
    """Its rollouts are others, written by hand: the oracle goes through the model step by step."""
    agent = make_agent(parts, backward="checkpoint")
    policy, states = agent.policy, torch.randn(4, agent.policy.model.state_dim)
    noise = torch.randn(4, *policy.noise_shape)
    oracle = Policy(policy.model, policy.decoder, PLANNER)
    means = policy(states, noise), oracle(states, noise)
    torch.testing.assert_close(*means)
    torch.testing.assert_close(
        *(torch.autograd.grad(mean.square().sum(), agent._parameters) for mean in means)
    )


def test_the_first_ratios_are_one_whenever_something_has() -> None:
    agent = make_agent(lr=1e-2, passes=2)
    for _ in range(3):
        figures = agent.step()
        assert figures["first_ratio_error"] == 0.0
        assert figures["planned_apart"] < 1e-5
        assert figures["ratio_error"] > 1e-3


def test_other_noise_is_another_policy() -> None:
    agent = make_agent()
    e = agent.gatherer.gather()
    states, noise, means = e.flat("states"), e.flat("noise"), e.flat("means")
    with torch.no_grad():
        torch.testing.assert_close(agent.policy(states, noise), means)
        assert (agent.policy(states, torch.randn_like(noise)) - means).abs().max() > 1e-3


@pytest.mark.parametrize("latent", [True, False])
def test_planning_in_a_batch_equals_planning_one_by_one(double: None, latent: bool) -> None:
    agent = make_agent(latent=latent, parts=("reward",))
    states = torch.randn(5, agent.policy.model.state_dim)
    noise = torch.randn(5, *agent.policy.noise_shape)
    one_by_one = [agent.policy(states[i : i + 1], noise[i : i + 1]) for i in range(5)]
    torch.testing.assert_close(agent.policy(states, noise), torch.cat(one_by_one))


@pytest.mark.parametrize("mode", ["unroll", "checkpoint"])
def test_the_gradient_is_that_of_finite_differences(double: None, mode: str) -> None:
    agent = make_agent(PARTS, backward=mode)
    policy, states = agent.policy, torch.randn(4, agent.policy.model.state_dim)
    noise, actions = torch.randn(4, *policy.noise_shape), torch.randn(4, 2)

    def total() -> Tensor:
        return policy.log_prob(actions, policy(states, noise)).sum()

    model = policy.model
    for parameter in (policy.decoder.net[0].weight, model.reward_head.weights[0], model.gru.hidden_weight):
        (gradient,) = torch.autograd.grad(total(), parameter)
        direction = torch.randn_like(parameter)
        with torch.no_grad():
            parameter += 1e-6 * direction
            above = total()
            parameter -= 2e-6 * direction
            below = total()
            parameter += 1e-6 * direction
        torch.testing.assert_close((gradient * direction).sum(), (above - below) / 2e-6, rtol=1e-4, atol=1e-6)


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
    figures = agent.step()
    assert figures["std"] != pytest.approx(0.5, abs=1e-6)
    assert all(map(torch.equal, before.values(), agent.policy.model.state_dict().values()))


def test_only_the_value_network_learns_in_the_first_steps() -> None:
    agent = make_agent(value_steps=1)
    before = copy.deepcopy(agent.policy.state_dict())
    values = copy.deepcopy(agent.critic.state_dict())
    assert "policy_loss" not in agent.step()
    assert all(map(torch.equal, before.values(), agent.policy.state_dict().values()))
    assert not any(map(torch.equal, values.values(), agent.critic.state_dict().values()))
    assert "policy_loss" in agent.step()


def test_what_is_gathered_is_what_happened() -> None:
    """Episodes of five steps, eight steps a call: ends lie within calls and episodes go on across them."""
    agent = make_agent(episode=5, std=0.8)
    model, first = agent.policy.model, agent.gatherer._observations.clone()
    ends = []
    for _ in range(3):
        e = agent.gatherer.gather()
        observations = torch.cat([first[None], e.following[:-1]])
        taken = e.actions.clamp(-1, 1)
        torch.testing.assert_close(e.arrived, observations + GAIN * taken)
        torch.testing.assert_close(e.rewards, -e.arrived.square().sum(-1))
        torch.testing.assert_close(model.decode(e.states), observations)
        torch.testing.assert_close(model.decode(e.reached), e.arrived)
        torch.testing.assert_close(e.reached, model.observe(e.states, taken, e.arrived))
        on = ~e.ended[:-1]
        assert torch.equal(e.states[1:][on], e.reached[:-1][on])
        assert torch.equal(e.states[1:][~on], model.initial(e.following[:-1])[~on])
        assert not e.terminated.any()
        ends.append(e.ended.clone())
        assert len(agent.gatherer.returns) == e.ended.sum()
        first = e.following[-1].clone()
    assert torch.equal(torch.cat(ends).nonzero()[::E, 0], torch.tensor([4, 9, 14, 19]))
    assert (e.actions.abs() > 1).any()  # as they were drawn
    assert 0.5 < (e.actions - e.means).std() < 1.1


def test_advantages_look_beyond_time_limits() -> None:
    """Each step's by hand: they end with the episode, and with the value of the state reached there."""
    agent = make_agent(episode=5, value_updates=0, lam=0.8)
    agent.step()
    e, critic = agent.gatherer.experience, agent.critic
    with torch.no_grad():
        errors = e.rewards + 0.5 * critic(e.reached) - critic(e.states)
    by_hand = torch.zeros(T, E)
    for t in range(T):
        for k in range(t, T):
            by_hand[t] += (0.5 * 0.8) ** (k - t) * errors[k]
            if k == 4:  # the one end of an episode in these steps
                break
    expected = (by_hand - by_hand.mean()) / by_hand.std(correction=0)
    torch.testing.assert_close(agent._advantages, expected.flatten())


def test_stale_states_are_filtered_again() -> None:
    agent = make_agent(episode=5)
    agent.gatherer.gather()
    e = agent.gatherer.gather()
    model = agent.policy.model
    stored = e.states.clone()
    agent.gatherer.filter_again()
    assert torch.equal(e.states, stored)
    with torch.no_grad():
        model.gru.bias += 0.5
    agent.gatherer.filter_again()
    state = stored[0]
    for t in range(T):
        torch.testing.assert_close(e.states[t], state)
        state = follow(model, state, e.actions[t].clamp(-1, 1), e.following[t], e.ended[t])
    assert (e.states - stored).abs().amax(-1).gt(1e-3)[1:].sum() > T  # all but first states of episodes


@pytest.mark.parametrize(
    ("parts", "again", "times"), [(PARTS, True, 3), (PARTS, False, 0), (("decoder", "reward"), True, 0)]
)
def test_states_are_filtered_before_every_later_pass_and_at_the_end(
    parts: tuple[str, ...], again: bool, times: int
) -> None:
    agent = make_agent(parts, passes=3, filter_again=again)
    filter_again, seen = agent.gatherer.filter_again, []

    def counted() -> None:
        seen.append(agent.policy.model.gru.bias.detach().clone())
        filter_again()

    agent.gatherer.filter_again = counted  # type: ignore[method-assign]
    agent.step()
    assert len(seen) == times
    assert not any(torch.equal(a, b) for a, b in combinations(seen, 2))  # updates lie between


@pytest.mark.parametrize("again", [True, False])
def test_filtering_again_is_a_choice_that_matters(again: bool) -> None:
    agent = make_agent(("transition",), lr=1e-2, passes=2, filter_again=again)
    agent.step()
    e, model = agent.gatherer.experience, agent.policy.model
    fresh = torch.allclose(e.reached, model.observe(e.states, e.actions.clamp(-1, 1), e.arrived), atol=1e-6)
    assert fresh == again


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


def test_an_agent_goes_on_from_its_state() -> None:
    """Bit for bit, in the middle of episodes."""

    def make() -> Finetuner:
        return make_agent(("decoder", "transition"), learn_std=True, lr=1e-3, episode=5, value_steps=1)

    agent = make()
    for _ in range(2):
        agent.step()
    saved = copy.deepcopy(agent.state_dict())
    expected = [agent.step() for _ in range(2)]
    other = make()
    other.load_state_dict(saved)
    assert [other.step() for _ in range(2)] == expected
    assert all(map(torch.equal, agent.policy.state_dict().values(), other.policy.state_dict().values()))


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


def test_advantages_of_a_steady_reward_do_not_tell_where_the_episode_ends() -> None:
    agent = make_agent(gamma=0.99, value_updates=0)
    critic, states = agent.critic, torch.randn(40, 2, agent.policy.model.state_dim).mul_(1e-3)
    rewards, no = torch.full((40, 2), 2.4), torch.zeros(40, 2, dtype=torch.bool)
    critic.begin(states, rewards)
    with torch.no_grad():
        found = advantages(rewards, critic(states), critic(states), no, no, 0.99, 0.95)
    assert found.abs().max() < 0.5  # with values of zero it is 35 at the beginning


def test_a_run_that_diverges_says_so() -> None:
    """And not only after its checkpoint is spoiled."""
    agent = make_agent(minibatch=E * T, passes=1)
    agent.critic.net.biases[0].data.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="policy_loss is nan in step 0: fine-tuning diverged"):
        agent.step()


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
    agent = Finetuner(ParallelEnv(make, 10), model, decoder, planner, config, steps=8, seed=0)
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
        ({"gamma": 1.0}, "gamma must be from 0 to below 1"),
        ({"lam": 1.1}, "lam must be from 0 to 1"),
        ({"std": 0.0}, "std must be positive"),
        ({"lr": float("nan")}, "lr must be positive"),
        ({"value_steps": -1}, "value_steps must not be negative"),
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
    with pytest.raises(ValueError, match="minibatch must be at most the 24 transitions of a step, got 25"):
        make_agent(minibatch=25)
    with pytest.raises(ValueError, match=r"length must be from model.distance=2 to the 8 steps"):
        make_agent(("reward",), likelihood=1.0)

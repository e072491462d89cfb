"""The planner as a policy: ratios that are one until something has changed, and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dcem.distributions import gaussian
from dcem.distributions.moments import weighted_moments
from dcem_lab.suite.agents.finetune_config import BACKWARD_MODES
from dcem_lab.suite.agents.policy import Policy
from dcem_lab.suite.agents.soft_plans import PARTS
from toy.finetuner import PLANNER, make_agent

NO_LEARNING = 1e-30  # a learning rate that moves no float


@pytest.mark.parametrize("latent", [True, False])
@pytest.mark.parametrize("mode", BACKWARD_MODES)
def test_every_ratio_is_one_before_anything_has_changed(mode: str, latent: bool) -> None:
    """To the bit: in both passes, the second of which comes with model states filtered again."""
    agent = make_agent(
        ("reward", "transition"), latent, lr=NO_LEARNING, passes=2, backward=mode, kept=0.5, episode=5
    )
    for _ in range(2):
        agent.step()
        figures = agent.metrics()
        assert figures["ratio_error"] == figures["first_ratio_error"] == figures["divergence"] == 0.0
        assert figures["planned_apart"] < 1e-5
        assert figures["gradient_norm"] > 0


@pytest.mark.parametrize("mode", BACKWARD_MODES)
def test_ratios_are_one_though_other_kernels_run_without_gradients(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CUDA device the moments are another kernel there, which rounds in its own way."""

    def rounded_otherwise(u: Tensor, w: Tensor, least: float, near: float) -> tuple[Tensor, Tensor]:
        mean, sigma = weighted_moments(u, w, least, near)
        return (mean, sigma) if torch.is_grad_enabled() and w.requires_grad else (mean + 1e-4, sigma)

    monkeypatch.setattr(gaussian, "weighted_moments", rounded_otherwise)
    agent = make_agent(("decoder", "reward"), lr=NO_LEARNING, backward=mode, kept=0.5)
    agent.step()
    figures = agent.metrics()
    assert figures["ratio_error"] == 0.0
    assert figures["planned_apart"] > 1e-5  # acting does without


def test_the_first_ratios_are_one_whenever_something_has() -> None:
    agent = make_agent(lr=1e-2, passes=2)
    for _ in range(3):
        agent.step()
        figures = agent.metrics()
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

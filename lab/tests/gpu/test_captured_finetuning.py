"""PPO through the planner with everything captured."""

import copy
import functools

import pytest
import torch
from torch import Generator

from dcem import Decoder
from dcem_lab.suite.agents import PlannerConfig
from dcem_lab.suite.agents.finetune import Finetuner
from dcem_lab.suite.agents.finetune_config import BACKWARD_MODES, FinetuneConfig
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.trained import Trained
from toy.environment import Plane

pytestmark = pytest.mark.gpu

PLANNER = PlannerConfig(samples=64, elites=8, iterations=3, horizon=4, tau=1.0, dtype="float16")


def make_agent(latent: bool = True, device: str = "cuda", units: int = 32, **changes: object) -> Finetuner:
    config = RSSMConfig(hidden=units, width=units, distance=4, normalize=True, members=2, pessimism=0.5)
    model = RSSM(2, 2, config, Generator().manual_seed(0)).to(device)
    torch.manual_seed(0)
    decoder = Decoder(3, PLANNER.horizon, 2, hidden=(32,)).to(device) if latent else None
    parts = ("decoder", "reward", "transition") if latent else ("reward", "transition")
    settings = {
        "minibatch": 20,
        "value_updates": 10,
        "value_steps": 0,
        "passes": 2,
        "kept": 0.5,
        "parts": parts,
    }
    envs = ParallelEnv(functools.partial(Plane, 10), 10)
    controller = Trained("plane", None, PLANNER, model, decoder)
    return Finetuner(envs, controller, FinetuneConfig(**{**settings, **changes}), steps=10, seed=0)


@pytest.mark.parametrize("mode", BACKWARD_MODES)
@pytest.mark.parametrize("latent", [True, False])
def test_ratios_begin_at_one_and_steps_are_finite(mode: str, latent: bool) -> None:
    agent = make_agent(latent, backward=mode, likelihood=0.01, length=5, learn_std=True)
    for _ in range(4):
        agent.step()
        figures = agent.metrics()
        # Other kernels may be chosen while capturing.
        assert figures["first_ratio_error"] < 1e-3
        assert figures["planned_apart"] < 0.05
        assert all(abs(value) < 1e6 for value in figures.values())
    assert agent._update._graphs  # it was captured


@pytest.mark.parametrize("mode", BACKWARD_MODES)
def test_a_frozen_transition_and_fused_acting(mode: str) -> None:
    agent = make_agent(units=128, backward=mode, parts=("decoder", "reward"))
    for _ in range(4):
        agent.step()
        figures = agent.metrics()
        assert figures["first_ratio_error"] < 1e-3
        assert figures["planned_apart"] < 0.05
    assert agent._update._graphs


@pytest.mark.parametrize("mode", BACKWARD_MODES)
def test_a_captured_update_is_that_of_the_processor(mode: str) -> None:
    """The same experience, the same minibatches: the weights end up alike."""
    agent = make_agent(backward=mode, lr=1e-4)
    agent.step()
    other = make_agent(device="cpu", backward=mode, lr=1e-4)
    other.policy.load_state_dict({name: x.cpu() for name, x in agent.policy.state_dict().items()})
    state = copy.deepcopy(agent.optimizer.state_dict())
    other.optimizer.load_state_dict({**state, "param_groups": other.optimizer.state_dict()["param_groups"]})
    agent.gatherer.gather()
    for ours, theirs in zip(other.gatherer.experience, agent.gatherer.experience, strict=True):
        ours.copy_(theirs)
    rows = torch.arange(20, device="cuda")
    advantages = torch.randn(100)
    for one in (agent, other):
        one._advantages.copy_(advantages)
        with torch.no_grad():
            one._remember(rows.to(one.device))
            one._update(rows.to(one.device))
    for a, b in zip(agent._parameters, other._parameters, strict=True):
        torch.testing.assert_close(a.cpu(), b, atol=5e-5, rtol=1e-3)

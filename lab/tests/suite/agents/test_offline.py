"""What an agent resumes from: offline, what it began with; in environments, enough to go on learning."""

import re
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from dcem_lab.suite.agents import DecoderConfig, Offline, Planet, PlannerConfig, build_offline
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from toy.agent import make_planet

PLANNER = PlannerConfig(samples=6, elites=2, iterations=2, horizon=2, tau=1.0)
DECODER = DecoderConfig(latent_dim=2, hidden=(8,), states=3, context=3)


def replay_state(reward: float = 0.0) -> dict[str, Tensor]:
    replay = ReplayBuffer(1, 30, 2, 1, shortest_episode=3)
    for t in range(20):
        x = torch.full((1, 2), float(t))
        replay.add(x, torch.zeros(1, 1), torch.full((1,), reward), x + 1, torch.tensor([t == 9]))
    return replay.state_dict()


def make(seed: int = 1, reward: float = 0.0) -> Offline:
    model = RSSM(2, 1, RSSMConfig(hidden=4, width=4), Generator().manual_seed(seed))
    return build_offline(model, replay_state(reward), DECODER, PLANNER, seed=0)


@pytest.mark.parametrize("changed", [{"seed": 2}, {"reward": 1.0}], ids=["model", "replay"])
def test_another_source_is_refused(changed: dict[str, float]) -> None:
    agent = make()
    agent.step()
    state = agent.state_dict()
    make().load_state_dict(state)
    with pytest.raises(ValueError, match=r"model and replay must be those .* the source has changed"):
        make(**changed).load_state_dict(state)


@pytest.mark.parametrize("context", [3, 7])
def test_a_checkpoint_without_room_for_a_chunk_is_refused_at_once(context: int) -> None:
    def make_agent(megabytes: float) -> Planet:
        return make_planet(
            planner=PLANNER,
            decoder=replace(DECODER, context=context),
            batch=2,
            seed_episodes=2,
            checkpoint_mb=megabytes,
        )

    with pytest.raises(ValueError, match=r"^checkpoint_mb must be at least 0\.\d+, got 0\.001$") as refusal:
        make_agent(0.001)
    least = float(re.findall(r"least (\S+),", str(refusal.value))[0])
    agent, other = (make_agent(least) for _ in range(2))
    for step in range(40):
        agent.step()
        if step >= 8:
            other.load_state_dict(agent.state_dict())
            assert other.collector.replay.n_starts(1) <= agent.collector.replay.n_starts(1)
            assert other.collector.replay.n_starts(max(5, context)) > 0
    assert other.collector.replay.n_starts(1) < agent.collector.replay.n_starts(1)
    other.step()

"""The update and the agent's loop."""

from dataclasses import replace

import pytest
import torch
from torch import Generator

from dcem_lab.suite.agents import CollectingConfig, LearningConfig, ModelLearner, Planet, ValueConfig
from dcem_lab.suite.planet import Config
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM, multistep_loss
from toy.agent import LEARNING, MODEL, PLANNER, make_planet


def filled_replay() -> ReplayBuffer:
    replay = ReplayBuffer(2, 40, 2, 2)
    generator = Generator().manual_seed(0)
    for _ in range(30):
        x, u = torch.randn(2, 2, generator=generator), torch.randn(2, 2, generator=generator)
        replay.add(x, u, torch.randn(2, generator=generator), x, torch.zeros(2, dtype=torch.bool))
    return replay


def make_learner(config: LearningConfig = LEARNING) -> ModelLearner:
    model = RSSM(2, 2, MODEL, Generator().manual_seed(1))
    return ModelLearner(model, filled_replay(), config, Generator().manual_seed(2))


def weights(agent: Planet) -> list[torch.Tensor]:
    return [parameter.clone() for parameter in agent.learners["model"].model.parameters()]


def test_an_update_is_adam_on_the_clipped_gradient_and_then_the_average() -> None:
    config = replace(LEARNING, clip=0.1)
    learner, oracle = make_learner(config), make_learner(config)
    model = oracle.model
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(3):
        learner.update()
        chunk = oracle.replay.sample(4, 5, oracle.generator)
        loss, _ = multistep_loss(model, *chunk, generator=oracle.generator)
        adam.zero_grad()
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        assert norm > 0.1
        for parameter in model.parameters():
            parameter.grad *= 0.1 / norm
        adam.step()
        average = [0.9 * a + 0.1 * p.detach() for a, p in zip(average, model.parameters(), strict=True)]
    for got, expected in zip(learner.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    for got, expected in zip(learner.average.parameters(), average, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_updates_learn_from_different_chunks_a_share_of_which_begins_an_episode() -> None:
    learner = make_learner(replace(LEARNING, updates_per_step=3.0, early_chunks=0.25))
    firsts = []
    for t in range(30):  # observations tell when they were made
        x = torch.full((2, 2), float(t % 10))
        learner.replay.add(x, torch.zeros(2, 2), torch.zeros(2), x + 1, torch.full((2,), t % 10 == 9))
    for _ in range(2):
        learner.keep_pace()
        firsts.append(learner._drawn[:, :, 0].clone())
    assert learner.updates == 6 and learner._next == 3
    assert len(torch.cat(firsts).unique(dim=0)) == 6
    assert (torch.cat(firsts)[:, -1] == 0).all() and (torch.cat(firsts)[:, :-1].amax(dim=0) > 0).all()


def test_figures_are_means_since_the_last_reading() -> None:
    one, two = make_learner(), make_learner()
    losses = []
    for _ in range(4):
        one.update()
        losses.append(one.metrics()["loss"])
        two.update()
    assert two.metrics()["loss"] == pytest.approx(sum(losses) / 4, rel=1e-5)
    assert two.metrics() == {}


def test_a_learner_goes_on_from_its_state() -> None:
    learner = make_learner()
    for _ in range(3):
        learner.update()
    saved = {**learner.state_dict()}
    saved = {name: (dict(value) if isinstance(value, dict) else value) for name, value in saved.items()}
    saved["model"] = {name: value.clone() for name, value in saved["model"].items()}
    saved["average"] = {name: value.clone() for name, value in saved["average"].items()}
    saved["optimizer"] = {
        i: {name: value.clone() for name, value in state.items()} for i, state in saved["optimizer"].items()
    }
    learner.update()
    other = make_learner()
    other.load_state_dict(saved)
    other.update()
    assert other.updates == learner.updates == 4
    for a, b in zip(learner.average.parameters(), other.average.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 0), (0.5, 6), (1.0, 12), (2.25, 27)])
def test_updates_keep_pace_with_steps(rate: float, expected: int) -> None:
    agent = make_planet(updates_per_step=rate)
    seeding = 16  # two environments with episodes of 8: four have ended, three are asked for
    for _ in range(seeding):
        agent.step()
    assert agent.learners["model"].updates == 0
    for _ in range(12):
        agent.step()
    assert agent.learners["model"].updates == expected


def test_short_seed_episodes_are_more_of_them() -> None:
    agent = make_planet(seed_steps=50)
    for _ in range(25):
        agent.step()
    assert agent.learners["model"].updates == 0
    other = make_planet(seed_steps=50)
    other.load_state_dict(agent.state_dict())
    other.step()
    assert other.learners["model"].updates == 1


def test_the_same_seed_gives_the_same_agent() -> None:
    agents = [make_planet(seed=seed) for seed in (0, 0, 1)]
    for agent in agents:
        for _ in range(24):
            agent.step()
    first, same, other = map(weights, agents)
    assert all(map(torch.equal, first, same))
    assert not any(map(torch.equal, first, other))
    assert agents[0].collector.returns == agents[1].collector.returns


def test_noise_spreads_over_the_environments() -> None:
    agent = make_planet(noise_from_zero=True)
    assert agent.collector._noise.flatten().tolist() == pytest.approx([0.0, 0.3])


def test_the_normaliser_learns_from_what_is_collected() -> None:
    agent = make_planet()
    for _ in range(20):
        agent.step()
    normalizer = agent.learners["model"].model.normalizer
    assert normalizer is agent.model.normalizer
    seen = agent.collector.replay.sample(500, 5).observations[:, 1:].flatten(0, 1)
    assert normalizer.count == 40
    torch.testing.assert_close(normalizer.mean, seen.mean(0), atol=0.3, rtol=0)


def test_a_cut_replay_buffer_keeps_the_newest() -> None:
    agent = make_planet(checkpoint_mb=0.0015)
    for _ in range(40):
        agent.step()
    saved = agent.state_dict()["replay"]
    assert sum(x.nbytes for x in saved.values()) <= 1500
    other = make_planet(checkpoint_mb=0.0015)
    other.load_state_dict(agent.state_dict())
    assert 0 < other.collector.replay.n_starts(1) < agent.collector.replay.n_starts(1)
    other.step()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"average": 1.0}, "average must be at least 0 and below 1, got 1.0"),
        ({"noise": -0.1}, "noise must be at least 0"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"updates_per_step": float("nan")}, "updates_per_step must be at least 0"),
    ],
)
def test_bad_settings_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        (CollectingConfig if "noise" in changes else LearningConfig)(**changes)


def test_a_chunk_is_as_long_as_what_is_predicted_in_it() -> None:
    with pytest.raises(ValueError, match=r"length must be at least model\.distance=3, got 2"):
        Config(length=2, model=MODEL)


@pytest.mark.parametrize(("steps", "searched"), [(0, "1111111111"), (3, "1110001110")])
def test_policy_and_planner_take_turns(steps: int, searched: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In which of two environments there is a search, from the seventh step on."""
    value = ValueConfig(critics=2, width=16, gamma=0.9, batch=4)
    collecting = CollectingConfig(seed_episodes=1, policy_share=0.5, policy_steps=steps)
    planner = replace(PLANNER, policy_plans=2)
    agent = make_planet(value=value, planner=planner, collecting=collecting, episode=6)
    rows: list[int] = []
    search = agent.planner._search

    def recorded(states: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        assert agent.planner._rows is not None
        rows.extend(agent.planner._rows.tolist())
        return search(states, noise)

    monkeypatch.setattr(agent.planner, "_search", recorded)
    for _ in range(16):
        agent.step()
    assert "".join(map(str, rows)) == searched


def test_turns_without_a_share_are_refused() -> None:
    with pytest.raises(ValueError, match="policy_steps must be 0 without a policy_share, got 3"):
        make_planet(policy_steps=3)

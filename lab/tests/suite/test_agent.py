"""An agent with a value on a tiny budget: trains, is killed, resumes, plays, ships, acts, is embedded."""

from __future__ import annotations

import csv
import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from dcem_lab import Agent, cli, pretrained
from dcem_lab.commands import exits
from dcem_lab.runs import load_checkpoint, read_records
from dcem_lab.suite import agent as experiment
from dcem_lab.suite import evaluate
from dcem_lab.suite.agents import Planet
from dcem_lab.suite.agents.guide import Situation
from dcem_lab.suite.agents.residual_decoder import ResidualDecoder
from dcem_lab.suite.envs.dmc import make_env
from dcem_lab.suite.trained import load
from toy.killed import train_until_killed
from toy.training import figures

CPU = torch.device("cpu")
WORDS = [
    "agent",
    "preset=tiny",
    "task=Pendulum-v1",
    "loop.env_steps=600",
    "loop.eval_every=500",
    "tensorboard=false",
]


def train(folder: Path, *words: str) -> int:
    return cli.main(["train", *WORDS, f"run_dir={folder}", *words])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agent") / "run"
    assert train(folder) == exits.DONE
    return folder


def test_the_log_tells_how_it_went(trained: Path) -> None:
    last = read_records(trained / "log.jsonl")[-1]
    assert last["value/updates"] == 100  # 300 steps of two environments, 200 of them in seed episodes
    for name in ("return", "loss", "value/critic_loss", "value/value", "env_steps_per_s", "ms/value_update"):
        assert np.isfinite(last[name])


@pytest.mark.process
def test_a_killed_run_ends_as_if_nothing_had_happened(trained: Path, tmp_path: Path) -> None:
    train_until_killed(Planet, 237, [*WORDS, f"run_dir={tmp_path}"], save_every=0.2)
    assert 0 < load_checkpoint(tmp_path).step < 237
    assert train(tmp_path) == exits.DONE
    assert figures(tmp_path) == figures(trained)
    for part in ("model", "value"):
        ours, theirs = (
            load_checkpoint(folder).tree["objects"]["agent"]["learners"][part]
            for folder in (tmp_path, trained)
        )
        for weights in ("model", "average"):
            assert all(map(torch.equal, ours[weights].values(), theirs[weights].values()))


def test_it_is_evaluated_exported_and_shipped(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    table = tmp_path / "evaluations.csv"
    assert cli.main(["eval", str(trained), "--episodes", "2", "--table", str(table)]) == exits.DONE
    with table.open() as file:
        assert {row["controller"] for row in csv.DictReader(file)} == {"full-cem-value"}
    assert cli.main(["export", str(trained), "--name", "a", "--results", str(tmp_path)]) == exits.DONE
    with (tmp_path / "agent" / "a" / "seed0" / "curve.csv").open() as file:
        assert float(list(csv.DictReader(file))[-1]["value"]) < 0
    assert cli.main(["ship", str(trained), "pendulum", "--folder", str(tmp_path)]) == exits.DONE
    read = pretrained.load
    monkeypatch.setattr(pretrained, "load", lambda name: read(name, tmp_path))
    both = [evaluate.load(what, CPU) for what in (trained, "pendulum")]
    assert both[1].value is not None
    assert both[0].description == both[1].description
    ours, theirs = (list(evaluate.play(what, episodes=2, seed=0, n_envs=2)) for what in both)
    assert ours == theirs


def test_an_agent_acts_as_its_controller_plays(trained: Path) -> None:
    agent = Agent.load(trained)
    [episode] = evaluate.play(evaluate.load(trained, CPU), episodes=1, seed=3, n_envs=1)
    total = 0.0
    with closing(make_env("Pendulum-v1")) as env:
        observation, _ = env.reset(seed=3)
        over = False
        while not over:
            action = agent.act(observation)
            assert action.shape == (1,)
            assert abs(action).max() <= 2  # the task's own units
            observation, reward, _, over, _ = env.step(action / 2)
            total += float(reward)
    assert total == pytest.approx(episode.total, rel=1e-4)
    agent.reset()
    assert agent.act(np.zeros((4, 3))).shape == (4, 1)
    with pytest.raises(ValueError, match=r"observation must have shape \(3,\) or \(E, 3\), got \(2,\)"):
        agent.act(np.zeros(2))


def test_an_action_is_held_as_long_as_it_was_in_training(tmp_path: Path) -> None:
    assert train(tmp_path, "action_repeat=3", "loop.env_steps=1500") == exits.DONE
    agent = Agent.load(tmp_path)
    acted = [agent.act(np.random.default_rng(i).normal(size=3)).item() for i in range(6)]
    assert acted[0] == acted[1] == acted[2] != acted[3] == acted[4]


def test_it_goes_on_from_another_and_from_phase_one(trained: Path, tmp_path: Path) -> None:
    words = ["lr=1e-9", "value.lr=1e-9", "loop.env_steps=200"]
    assert train(tmp_path / "on", f"from={trained}", *words) == exits.DONE
    before, after = (load(folder).value for folder in (trained, tmp_path / "on"))
    assert before is not None
    assert after is not None
    for one, other in zip(before.parameters(), after.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)
    model = [f"model.{name}={value}" for name, value in _unlike_the_default(trained).items()]
    phase_one = ["train", "planet", *WORDS[1:], f"run_dir={tmp_path / 'one'}", *model]
    assert cli.main([*phase_one]) == exits.DONE
    assert train(tmp_path / "two", f"from={tmp_path / 'one'}", *words) == exits.DONE


def _unlike_the_default(trained: Path) -> dict[str, object]:
    config = json.loads((trained / "run.json").read_text())["config"]["model"]
    return {
        name: str(value).lower()
        for name, value in config.items()
        if name not in ("angles", "hidden", "width")
    }


def test_another_value_is_refused_before_it_starts(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert train(tmp_path / "on", f"from={trained}", "value.width=8") == exits.USAGE
    assert "value.width must be 16" in capsys.readouterr().err


def test_discount_and_bound_come_from_the_task() -> None:
    for task, gamma, bound in (
        ("cheetah-run", 0.98, 200),
        ("walker-walk", 0.99, 200),
        ("Pendulum-v1", 0.995, None),
    ):
        config = experiment.Config(task=task)
        with closing(make_env(task)) as env:
            value = config.agent_for(env).value
        assert value is not None
        assert value.gamma == pytest.approx(gamma)
        assert value.bound == (None if bound is None else pytest.approx(bound))


def test_two_hot_values_learn_too(tmp_path: Path) -> None:
    assert train(tmp_path, "value.values=two-hot", "loop.env_steps=450") == exits.DONE
    value = load(tmp_path).value
    assert value is not None
    assert value.settings["values"] == "two-hot"


@pytest.mark.process
def test_a_killed_run_with_imagined_targets_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    words, (whole, killed) = ["value.targets=imagined"], (tmp_path / "whole", tmp_path / "killed")
    assert train(whole, *words) == exits.DONE
    train_until_killed(Planet, 237, [*WORDS, *words, f"run_dir={killed}"], save_every=0.2)
    assert 0 < load_checkpoint(killed).step < 237
    assert train(killed, *words) == exits.DONE
    assert figures(killed) == figures(whole)
    ours, theirs = (
        load_checkpoint(folder).tree["objects"]["agent"]["learners"]["value"] for folder in (killed, whole)
    )
    for weights in ("model", "average"):
        assert all(map(torch.equal, ours[weights].values(), theirs[weights].values()))


EMBED = [
    "embed",
    "preset=tiny",
    "loop.env_steps=200",
    "loop.eval_every=200",
    "tensorboard=false",
    "value.updates_per_step=1",
    "value.batch=16",
]

MIXED = ["decoder.residual=true", "collecting.policy_share=0.5", "collecting.policy_steps=9"]


@pytest.fixture(scope="module")
def embedded(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embed") / "run"
    assert cli.main(["train", *EMBED, *MIXED, f"from={trained}", f"run_dir={folder}"]) == exits.DONE
    return folder


def test_phase_two_corrects_the_policys_plans(trained: Path, embedded: Path) -> None:
    last = read_records(embedded / "log.jsonl")[-1]
    assert last["value/updates"] == last["decoder/updates"] == 100
    loaded = evaluate.load(embedded, CPU)
    assert loaded.value is not None
    assert isinstance(loaded.decoder, ResidualDecoder)
    [episode] = evaluate.play(loaded, episodes=1, seed=0, n_envs=1)
    assert np.isfinite(episode.total)
    full = evaluate.load(embedded, CPU, full_space=True)
    assert full.decoder is None
    assert (full.planner.policy_plans, full.planner.horizon) == (24, 3)
    alone = evaluate.load(embedded, CPU, full_space=True, iterations=0)
    [episode] = evaluate.play(alone, episodes=1, seed=0, n_envs=1)
    assert np.isfinite(episode.total)


def test_an_untrained_decoder_takes_the_place_of_a_trained_one(trained: Path, embedded: Path) -> None:
    before = evaluate.load(embedded, CPU)
    new, again, other = (evaluate.load(embedded, CPU, new_decoder=seed) for seed in (0, 0, 1))
    assert new.planner == before.planner
    z, plans, decoded = torch.randn(7, 2), torch.zeros(1, 3, 1), []
    for one in (before, new, again, other):
        assert isinstance(one.decoder, ResidualDecoder)
        decoded.append(one.decoder(z, Situation(z, plans)))
        assert decoded[-1].shape == (7, 3, 1)
    assert torch.equal(decoded[1], decoded[2])
    assert len({float(actions.sum()) for actions in decoded}) == 3
    for part in ("model", "value"):
        weights = (one.networks[part].state_dict().values() for one in (before, new))
        assert all(map(torch.equal, *weights))
    [episode] = evaluate.play(new, episodes=1, seed=0, n_envs=1)
    assert np.isfinite(episode.total)

    # Without a decoder it is the one, and the search, that phase 2 starts with.
    first = evaluate.load(trained, CPU, new_decoder=0, samples=12)
    assert isinstance(first.decoder, ResidualDecoder)
    assert (first.planner.samples, first.planner.elites, first.planner.horizon) == (12, 10, 6)
    assert (first.planner.tau, first.planner.temperature, first.planner.policy_plans) == (0.2, None, 0)
    with pytest.raises(ValueError, match="new_decoder must be left out with full_space"):
        evaluate.load(embedded, CPU, full_space=True, new_decoder=0)


@pytest.mark.process
def test_phase_two_resumes_as_if_nothing_had_happened(trained: Path, embedded: Path, tmp_path: Path) -> None:
    words = [*EMBED, *MIXED, f"from={trained}"]
    train_until_killed(Planet, 60, [*words, f"run_dir={tmp_path}"], save_every=0.2)
    assert 0 < load_checkpoint(tmp_path).step < 60
    assert cli.main(["train", *words, f"run_dir={tmp_path}"]) == exits.DONE
    assert figures(tmp_path) == figures(embedded)


@pytest.mark.parametrize("words", [["offline=true", "decoder.residual=true"], ["keep_value=false"], []])
def test_other_ways_to_embed(trained: Path, tmp_path: Path, words: list[str]) -> None:
    assert cli.main(["train", *EMBED, f"from={trained}", f"run_dir={tmp_path}", *words]) == exits.DONE
    assert (load(tmp_path).value is None) == ("keep_value=false" in words)


def test_phase_three_goes_through_plans_that_end_in_a_value(embedded: Path, tmp_path: Path) -> None:
    words = ["ppo", "preset=tiny", "steps=2", "tensorboard=false", f"from={embedded}", f"run_dir={tmp_path}"]
    assert cli.main(["train", *words]) == exits.DONE
    assert load(tmp_path).value is not None
    assert read_records(tmp_path / "log.jsonl")[1]["first_ratio_error"] < 1e-5


def test_phase_three_goes_through_plans_that_start_from_a_policy(trained: Path, tmp_path: Path) -> None:
    words = ["ppo", "preset=tiny", "steps=2", "tensorboard=false", f"from={trained}", f"run_dir={tmp_path}"]
    words += ["learning.parts=[reward]", "planner.samples=3", "planner.elites=2", "planner.policy_plans=2"]
    assert cli.main(["train", *words]) == exits.DONE
    assert load(tmp_path).planner.policy_plans == 2
    assert read_records(tmp_path / "log.jsonl")[1]["gradient_norm"] > 0


def test_phase_three_off_policy_pleases_the_critics(embedded: Path, tmp_path: Path) -> None:
    words = ["keep_decoder=true", "decoder.residual=true", "decoder.updates_per_step=0", "updates_per_step=0"]
    words += ["plan.updates_per_step=1", f"from={embedded}"]
    assert cli.main(["train", *EMBED, *words, f"run_dir={tmp_path}"]) == exits.DONE
    last = read_records(tmp_path / "log.jsonl")[-1]
    assert last["plan/updates"] == last["value/updates"] == 100
    assert last["updates"] == last["decoder/updates"] == 0
    before, after = (load(folder).decoder for folder in (embedded, tmp_path))
    assert before is not None
    assert after is not None
    assert not torch.equal(before.net[0].weight, after.net[0].weight)


def test_what_needs_a_value_is_refused_without_one(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [*EMBED, f"from={trained}", f"run_dir={tmp_path}", "keep_value=false", "decoder.residual=true"]
    assert cli.main(["train", *words]) == exits.USAGE
    assert "decoder.residual must be left out" in capsys.readouterr().err

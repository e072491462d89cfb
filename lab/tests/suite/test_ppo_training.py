"""The paper's phase 3 on a tiny budget: trains, is killed, resumes, is evaluated and ships."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
import torch

from dcem_lab import cli, pretrained
from dcem_lab.commands import exits
from dcem_lab.commands.evaluate import add_common_options
from dcem_lab.runs import load_checkpoint, read_records
from dcem_lab.suite import evaluate
from dcem_lab.suite.agents.finetune import Finetuner
from dcem_lab.suite.online import FINETUNE_SELECTION_SEED, SELECTION_SEED
from dcem_lab.suite.trained import load
from toy.controlled import make_run
from toy.killed import train_until_killed
from toy.training import figures

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("source") / "latent", latent=True)


def words(source: Path, folder: Path, *more: str) -> list[str]:
    return ["ppo", f"from={source}", "preset=tiny", "tensorboard=false", f"run_dir={folder}", *more]


def train(source: Path, folder: Path, *more: str) -> int:
    return cli.main(["train", *words(source, folder, *more)])


@pytest.fixture(scope="module")
def trained(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ppo") / "run"
    assert train(source, folder) == exits.DONE
    return folder


def test_the_log_tells_how_it_went(trained: Path) -> None:
    records = read_records(trained / "log.jsonl")
    assert [r["step"] for r in records] == [0, 1, 2, 3, 4]
    assert [r["env_steps"] for r in records] == [0, 100, 200, 300, 400]
    assert [r["step"] for r in records if "eval/mean" in r] == [0, 2, 4]
    assert records[-1]["eval/best"] == max(r["eval/mean"] for r in records if "eval/mean" in r)
    assert "policy_loss" not in records[0]  # only the value network learns there
    for record in records[1:-1]:
        assert record["first_ratio_error"] == 0
        for name in ("policy_loss", "gradient_norm", "divergence", "explained", "ms/gather", "ms/update"):
            assert np.isfinite(record[name])
    assert np.isfinite(records[3]["return"])  # the first episodes end there


def test_the_chosen_parts_have_changed(source: Path, trained: Path) -> None:
    before, after = load(source), load(trained, snapshot="last")
    assert after.task == before.task
    assert after.planner.samples == 10
    for name, weight in before.model.state_dict().items():
        changed = not torch.equal(weight, after.model.state_dict()[name])
        assert changed == name.startswith("reward_head"), name
    assert before.decoder is not None and after.decoder is not None
    assert not torch.equal(before.decoder.net[0].weight, after.decoder.net[0].weight)


@pytest.mark.process
def test_a_killed_run_ends_as_if_nothing_had_happened(source: Path, trained: Path, tmp_path: Path) -> None:
    train_until_killed(Finetuner, 3, words(source, tmp_path), save_every=1e-9)
    assert load_checkpoint(tmp_path).step == 2
    assert train(source, tmp_path) == exits.DONE
    assert figures(tmp_path) == figures(trained)
    for snapshot in ("best", "last"):
        ours, theirs = (load(folder, snapshot).model for folder in (tmp_path, trained))
        assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))


def test_a_time_limit_stops_in_good_order(source: Path, tmp_path: Path) -> None:
    assert train(source, tmp_path, "time_limit=0.01") == exits.INTERRUPTED
    assert load_checkpoint(tmp_path).step >= 1


def test_a_controller_over_action_sequences_is_fine_tuned_too(tmp_path: Path) -> None:
    source = make_run(tmp_path / "full", latent=False)
    more = (
        "learning.parts=[reward,transition]",
        "learning.backward=prune",
        "learning.likelihood=0.1",
        "learning.learn_std=true",
        "steps=2",
    )
    assert train(source, tmp_path / "run", *more) == exits.DONE
    records = read_records(tmp_path / "run" / "log.jsonl")
    assert records[1]["first_ratio_error"] == 0
    assert np.isfinite(records[1]["model_loss"])
    after = load(tmp_path / "run", "last")
    assert after.decoder is None
    assert not torch.equal(load(source).model.gru.bias, after.model.gru.bias)


def test_it_is_evaluated_and_ships(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    csv = str(tmp_path / "episodes.csv")
    arguments = [str(trained), "--episodes", "2", "--at-once", "1", "--csv", csv]
    assert cli.main(["eval", *arguments]) == exits.DONE
    assert "mean" in capsys.readouterr().out
    load(trained).ship("pendulum-ppo", tmp_path)
    read = pretrained.load
    monkeypatch.setattr(pretrained, "load", lambda name: read(name, tmp_path))
    both = [evaluate.load(what, CPU) for what in (trained, "pendulum-ppo")]
    ours, theirs = (list(evaluate.play(what, episodes=1, seed=0, n_envs=1)) for what in both)
    assert ours == theirs


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["learning.parts=[decoder]"], "parts must not name the decoder"),
        (["learning.parts=[reward]", "planner.tau=0"], "planner.tau must be positive"),
        (
            ["learning.parts=[reward]", "learning.minibatch=51"],
            "minibatch must be at most 50, the transitions of a step, got 51",
        ),
        (["learning.parts=[reward]", "planner.elites=11"], "elites must be from 1 to samples=10, got 11"),
        (["learning.parts=[model]"], "parts must be some of decoder, reward, transition"),
        (["snapshot=first"], "snapshot must be one of best, last, got 'first'"),
        (["loop.n_workers=3"], "n_workers must be from 0 to 2, got 3"),
        (["learning.value_steps=4"], "learning.value_steps must be below steps=4"),
        (["learning.parts=[reward]", "planner.elites=10"], "planner.elites must be below samples=10"),
        (
            ["learning.parts=[reward]", "learning.likelihood=0.1", "learning.length=25"],
            "length must be from model.distance=2 to below",
        ),
        (
            ["learning.parts=[reward]", "learning.likelihood=0.1", "learning.length=101", "actions=200"],
            "length must be at most 100, the actions of an episode, got 101",
        ),
        (
            ["learning.parts=[reward]", "learning.likelihood=0.1", "learning.replay_steps=21"],
            "replay_steps must be at least 22, for chunks of length=10 in 2 environments, got 21",
        ),
    ],
)
def test_bad_configs_are_refused(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    source = make_run(tmp_path / "full", latent=False)
    assert train(source, tmp_path / "run", *more) == exits.USAGE
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_seeds_of_selection_and_evaluation_are_apart() -> None:
    """Those of phase 3 are its own: its source was chosen on the others."""
    evaluation = argparse.ArgumentParser()
    add_common_options(evaluation)
    first = [SELECTION_SEED, FINETUNE_SELECTION_SEED, evaluation.get_default("seed")]
    assert min(np.diff(sorted(first))) >= 100_000


@pytest.mark.parametrize(("snapshot", "bias"), [("best", 0.0), ("last", 1.0)])
def test_it_starts_from_the_best_or_the_last_weights(snapshot: str, bias: float, tmp_path: Path) -> None:
    source = make_run(tmp_path / "source", latent=True, moved=1.0)
    more = ("learning.parts=[reward]", f"snapshot={snapshot}", "steps=2")
    assert train(source, tmp_path / "run", *more) == exits.DONE
    decoder = load(tmp_path / "run", "last").decoder
    assert decoder is not None
    assert (decoder.net[0].bias == bias).all()


def test_a_source_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["train", "ppo", "preset=tiny", f"run_dir={tmp_path / 'run'}"]) == exits.USAGE
    assert "name of pretrained weights" in capsys.readouterr().err
    assert train(Path("no-such-thing"), tmp_path / "run") == exits.USAGE
    assert "no-such-thing" in capsys.readouterr().err

"""The paper's phase 2 on a tiny budget: starts from phase 1, is killed, resumes, is evaluated and ships."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dcem_lab import cli, pretrained
from dcem_lab.commands import exits
from dcem_lab.runs import load_checkpoint, read_records
from dcem_lab.suite import embed, evaluate, planet
from dcem_lab.suite.agents import Planet, PlannerConfig
from dcem_lab.suite.online import SELECTION_SEED
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.trained import Trained, load
from toy.killed import train_until_killed
from toy.training import figures

CPU = torch.device("cpu")
SHORT = ["preset=tiny", "loop.env_steps=300", "loop.eval_every=150", "tensorboard=false"]


@pytest.fixture(scope="module")
def phase1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The comma and the equals sign are as in folders that `dcem train` names itself.
    folder = tmp_path_factory.mktemp("planet") / "tiny,task=Pendulum-v1"
    words = [
        "preset=tiny",
        "task=Pendulum-v1",
        "loop.env_steps=500",
        "loop.eval_every=500",
        "tensorboard=false",
    ]
    assert cli.main(["train", "planet", *words, f"run_dir={folder}"]) == exits.DONE
    return folder


def train(source: Path, folder: Path, *words: str) -> int:
    return cli.main(["train", "embed", f"from={source}", *SHORT, f"run_dir={folder}", *words])


@pytest.fixture(scope="module")
def trained(phase1: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embed") / "run"
    assert train(phase1, folder) == exits.DONE
    return folder


def weights(folder: Path, snapshot: str = "last") -> list[torch.Tensor]:
    source = load(folder, snapshot)
    assert source.decoder is not None
    return [*source.model.parameters(), *source.decoder.parameters()]


def test_the_log_tells_how_it_went(trained: Path) -> None:
    records = read_records(trained / "log.jsonl")
    evaluations = [r for r in records if "eval/mean" in r]
    assert [r["env_steps"] for r in evaluations] == [150, 300]
    assert evaluations[-1]["eval/best"] == max(r["eval/mean"] for r in evaluations)
    last = records[-1]
    assert (last["updates"], last["decoder/updates"]) == (75, 150)
    for name in ("decoder/cost", "decoder/gradient_norm", "ms/decoder_update", "ms/plan", "loss"):
        assert np.isfinite(last[name])


@pytest.mark.process
def test_a_killed_run_ends_as_if_nothing_had_happened(phase1: Path, trained: Path, tmp_path: Path) -> None:
    words = ["embed", f"from={phase1}", *SHORT, f"run_dir={tmp_path}"]
    train_until_killed(Planet, 117, words, save_every=0.2)
    assert 0 < load_checkpoint(tmp_path).step < 117
    assert train(phase1, tmp_path) == exits.DONE
    assert figures(tmp_path) == figures(trained)
    for snapshot in ("best", "last"):
        assert all(map(torch.equal, weights(tmp_path, snapshot), weights(trained, snapshot)))


def test_eval_plays_the_best_or_the_last(trained: Path, tmp_path: Path) -> None:
    for snapshot in ("best", "last"):
        path = tmp_path / f"{snapshot}.csv"
        words = ["--episodes", "1", "--seed", "5", "--csv", str(path), "--snapshot", snapshot]
        assert cli.main(["eval", str(trained), *words]) == exits.DONE
        with path.open() as file:
            assert [row["seed"] for row in csv.DictReader(file)] == ["5"]
    # The evaluations while training are the same for anyone who plays those seeds.
    controller = evaluate.load(trained, CPU)
    returns = [e.total for e in evaluate.play(controller, 2, SELECTION_SEED, n_envs=2)]
    best = max(r["eval/mean"] for r in read_records(trained / "log.jsonl") if "eval/mean" in r)
    assert np.mean(returns) == pytest.approx(best)


def test_eval_does_not_plan_further_than_the_decoder(trained: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["eval", str(trained), "--horizon", "5"]) == exits.USAGE
    assert f"horizon must be 3, that of the decoder of {trained}, got 5" in capsys.readouterr().err


def test_eval_sharpens_its_search(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    table = tmp_path / "evaluations.csv"
    words = ["--episodes", "1", "--tau", "0", "--table", str(table), "--controller", "hard"]
    assert cli.main(["eval", str(trained), *words]) == exits.DONE
    (record,) = json.loads(table.with_suffix(".json").read_text()).values()
    assert record["planner"]["tau"] == 0.0 != evaluate.load(trained, CPU).planner.tau
    capsys.readouterr()
    assert cli.main(["eval", str(trained), "--tau", "-1"]) == exits.USAGE
    assert "tau must be at least 0, got -1.0" in capsys.readouterr().err


def test_eval_plays_its_model_without_the_decoder(trained: Path, tmp_path: Path) -> None:
    loaded = evaluate.load(trained, CPU, full_space=True, samples=20, elites=2, iterations=2)
    assert (loaded.planner.tau, loaded.planner.horizon, loaded.planner.elites) == (0.0, 3, 2)
    assert evaluate.load(trained, CPU, full_space=True).planner.samples == 1000
    words = ["--episodes", "1", "--seed", "5", "--samples", "20", "--elites", "2", "--iterations", "2"]
    words += ["--full-space", "--csv", str(tmp_path / "full.csv")]
    assert cli.main(["eval", str(trained), *words]) == exits.DONE
    with (tmp_path / "full.csv").open() as file:
        (played,) = csv.DictReader(file)
    (episode,) = evaluate.play(loaded, 1, seed=5, n_envs=1)
    assert float(played["return"]) == pytest.approx(episode.total)
    (latent,) = evaluate.play(evaluate.load(trained, CPU), 1, seed=5, n_envs=1)
    assert latent.total != pytest.approx(episode.total)


def test_what_is_kept_of_a_run_has_what_plans_cost(trained: Path, tmp_path: Path) -> None:
    assert cli.main(["export", str(trained), "--name", "a-b", "--results", str(tmp_path)]) == exits.DONE
    with (tmp_path / "embed" / "a-b" / "seed0" / "curve.csv").open() as file:
        kept = list(csv.DictReader(file))
    assert float(kept[-1]["decoder_cost"]) == read_records(trained / "log.jsonl")[-1]["decoder/cost"]


def test_shipped_weights_play_like_the_run_they_came_from(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(trained).ship("pendulum-dcem", tmp_path)
    read = pretrained.load
    monkeypatch.setattr(pretrained, "load", lambda name: read(name, tmp_path))
    both = [evaluate.load(what, CPU) for what in (trained, "pendulum-dcem")]
    assert both[0].planner == both[1].planner
    ours, theirs = (list(evaluate.play(what, episodes=2, seed=0, n_envs=2)) for what in both)
    assert ours == theirs
    source = load("pendulum-dcem")
    assert source.task == "Pendulum-v1"
    assert source.replay is None
    assert source.decoder is not None
    assert source.decoder.latent_dim == 2


def test_a_source_is_what_was_trained(phase1: Path, trained: Path) -> None:
    first, second = load(phase1), load(trained)
    assert first.decoder is None
    assert first.planner == planet.PRESETS["tiny"]["evaluation"]
    assert second.planner == embed.PRESETS["tiny"]["planner"]
    assert first.replay is not None
    assert second.replay is not None
    assert int(second.replay["written"].sum()) > int(first.replay["written"].sum())
    average = load_checkpoint(phase1).tree["objects"]["agent"]["learners"]["model"]["average"]
    assert all(torch.equal(x, average[name]) for name, x in first.model.state_dict().items())


def test_offline_learns_a_decoder_and_nothing_else(phase1: Path, tmp_path: Path) -> None:
    words = ["offline=true", "planner.iterations=3", "decoder.backward=prune", "pessimism=2.0"]
    assert train(phase1, tmp_path, *words, "loop.env_steps=20", "loop.eval_every=20") == exits.DONE
    source, before = load(tmp_path), load(phase1)
    assert all(map(torch.equal, source.model.parameters(), before.model.parameters()))
    assert (source.planner.iterations, source.model.config.pessimism) == (3, 2.0)
    assert read_records(tmp_path / "log.jsonl")[-1]["decoder/updates"] == 10


@pytest.mark.parametrize("keep_model", [True, False])
@pytest.mark.parametrize("keep_replay", [True, False])
def test_model_and_statistics_are_kept_or_not(phase1: Path, keep_model: bool, keep_replay: bool) -> None:
    source = load(phase1)
    config = embed.Config(keep_model=keep_model, keep_replay=keep_replay, pessimism=3.0)
    source.model.normalizer.mean.fill_(5.0)
    model = embed.first_model(source, config)
    same = all(map(torch.equal, model.parameters(), source.model.parameters()))
    assert same == keep_model
    assert bool((model.normalizer.mean == 5.0).all()) == (keep_model or keep_replay)
    assert model.config.pessimism == 3.0


@pytest.mark.parametrize("keep_model", [True, False])
def test_without_its_replay_a_run_begins_with_seed_episodes(
    phase1: Path, tmp_path: Path, plans: list[object], keep_model: bool
) -> None:
    words = ["keep_replay=false", f"keep_model={keep_model}", "loop.env_steps=440", "loop.eval_every=440"]
    assert train(phase1, tmp_path, *words) == exits.DONE
    last = read_records(tmp_path / "log.jsonl")[-1]
    assert last["decoder/updates"] == 20  # 200 of the 220 steps were of the seed episodes
    assert (plans[0] is not None) == keep_model  # phase 1 controls those, or chance
    assert plans[0] is not plans[-1] is not None
    replay = load(tmp_path).replay
    assert replay is not None
    assert replay["written"].tolist() == [221, 221]


@pytest.mark.parametrize("replay", [True, False])
def test_a_decoder_goes_on_learning(trained: Path, tmp_path: Path, plans: list[object], replay: bool) -> None:
    words = ["keep_decoder=true", f"keep_replay={replay}", "seed=1", "decoder.lr=1e-9", "lr=1e-9"]
    steps = [
        "loop.env_steps=440",
        "loop.eval_every=440",
    ]  # of which 400 are seed episodes where no replay is kept
    assert train(trained, tmp_path, *words, *steps) == exits.DONE
    before, after = weights(trained, "best"), weights(tmp_path)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(before, after, strict=True))
    assert read_records(tmp_path / "log.jsonl")[-1]["decoder/updates"] == (220 if replay else 20)
    assert plans[0] is plans[-1] is not None  # it controls the seed episodes, too


def test_a_decoder_that_is_not_there_or_another_is_refused(
    phase1: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert train(phase1, tmp_path, "keep_decoder=true") == exits.USAGE
    assert "has no decoder" in capsys.readouterr().err
    assert train(trained, tmp_path, "keep_decoder=true", "decoder.latent_dim=3") == exits.USAGE
    assert "the decoder's latent_dim must be what it is in" in capsys.readouterr().err


def test_the_best_weights_are_those_of_the_highest_score() -> None:
    model = RSSM(2, 1, RSSMConfig(hidden=4, width=4))
    trained = Trained("task", None, PlannerConfig(), model)
    bias = model.gru.bias.detach()
    for value, score in enumerate([1.0, 3.0, 2.0, float("nan")]):
        bias.fill_(value)
        trained.keep_if_best(score)
    state = trained.state_dict()
    assert state["score"] == 3.0
    assert (state["best"]["model"]["gru.bias"] == 1).all()
    assert (state["last"]["model"]["gru.bias"] == 3).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["length=2"], "length must be at least model.distance=4, got 2"),
        (["length=201"], "length must be at most 200, the actions of an episode, got 201"),
        (["decoder.context=201", "keep_replay=false"], "decoder.context must be at most 200"),
        (
            ["collecting.replay_steps=21"],
            "replay_steps must be at least 22, for chunks of length=10 in 2 environments, got 21",
        ),
        (["collecting.checkpoint_mb=0.0001"], "checkpoint_mb must be at least 0.0"),
        (
            ["offline=true", "decoder.context=201"],
            "decoder.context must be below the steps of some episode in the replay of",
        ),
    ],
)
def test_chunks_that_no_episode_has_are_refused(
    phase1: Path, words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert train(phase1, tmp_path / "run", *words) == exits.USAGE
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["from=no-such-run"], "from must be a run folder or the name of pretrained weights"),
        (["from="], "from must be a run folder or the name of pretrained weights"),
        (["from=cheetah-run"], "keep_replay must be false: cheetah-run has no replay buffer"),
        (["from=cartpole-2"], "cartpole-2 must be a controller with an environment"),
        (
            ["from=cheetah-run-dcem", "keep_decoder=true", "keep_model=false"],
            "keep_decoder must be false with",
        ),
        (["offline=true", "keep_replay=false"], "keep_replay must be true with offline=true"),
        (["offline=true", "decoder.recent=25"], "decoder.recent must be 0 with offline=true"),
        (["planner.tau=0"], "planner.tau must be positive unless decoder.backward is detach"),
        (["pessimism=-1"], "pessimism must be at least 0, got -1.0"),
        (["decoder.backward=adjoint"], "backward must be one of unroll"),
    ],
)
def test_bad_configs_are_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(["train", "embed", *words, f"run_dir={tmp_path}"]) == exits.USAGE
    assert message in capsys.readouterr().err


def test_what_is_no_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be a run folder or a shipped model, but it has no run\.json"):
        load(tmp_path)
    with pytest.raises(ValueError, match="must be a controller with an environment, got one of"):
        load("cartpole-2")
    with pytest.raises(ValueError, match="snapshot must be one of best, last, got 'first'"):
        load("cartpole-2", "first")


def test_plans_of_several_latent_points_are_trained_and_evaluated(phase1: Path, tmp_path: Path) -> None:
    assert train(phase1, tmp_path, "planner.latent_points=2", "loop.env_steps=150") == exits.DONE
    found = evaluate.load(tmp_path, CPU)
    assert (found.planner.latent_points, found.planner.horizon) == (2, 3)
    words = ["eval", str(tmp_path), "--latent-points", "1", "--episodes", "1", "--device", "cpu"]
    assert cli.main(words) == exits.DONE

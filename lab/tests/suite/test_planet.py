"""The paper's phase 1 on a tiny budget: trains, is killed, resumes, is evaluated, ships and is filmed."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gymnasium
import imageio
import mujoco
import numpy as np
import pytest
import scipy.stats
import torch
from dm_control import suite

from dcem_lab import cli, pretrained
from dcem_lab.commands import exits
from dcem_lab.runs import load_checkpoint, read_records
from dcem_lab.runs.progress import Progress
from dcem_lab.suite import evaluate, planet
from dcem_lab.suite import trained as controllers
from dcem_lab.suite.agents import Planet, PlannerConfig
from dcem_lab.suite.envs.dmc import DMCEnv
from dcem_lab.suite.film import CannotDrawError, film
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.trained import Trained, load
from toy.environment import Plane
from toy.killed import train_until_killed
from toy.training import figures

CPU = torch.device("cpu")
WORDS = [
    "planet",
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
    folder = tmp_path_factory.mktemp("planet") / "run"
    assert train(folder) == exits.DONE
    return folder


@pytest.fixture
def pendulum_ships(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's weights are among those that ship, as `pendulum`."""
    load(trained).ship("pendulum", tmp_path)
    read = pretrained.load
    monkeypatch.setattr(pretrained, "load", lambda name: read(name, tmp_path))
    monkeypatch.setattr(pretrained, "available", lambda: ["pendulum"])


def test_the_log_tells_how_it_went(trained: Path) -> None:
    records = read_records(trained / "log.jsonl")
    assert [r["env_steps"] for r in records if "eval/mean" in r] == [500, 600]
    last = records[-1]
    assert last["updates"] == 100  # 300 steps of two environments, 200 of them in seed episodes
    for name in ("return", "loss", "gradient_norm", "env_steps_per_s", "ms/plan", "ms/update", "ms/env"):
        assert np.isfinite(last[name])


def test_the_same_seed_gives_the_same_numbers(trained: Path, tmp_path: Path) -> None:
    assert train(tmp_path) == exits.DONE
    assert figures(tmp_path) == figures(trained)


@pytest.mark.process
def test_a_killed_run_ends_as_if_nothing_had_happened(trained: Path, tmp_path: Path) -> None:
    train_until_killed(Planet, 237, [*WORDS, f"run_dir={tmp_path}"], save_every=0.2)
    assert 0 < load_checkpoint(tmp_path).step < 237
    assert train(tmp_path) == exits.DONE
    assert figures(tmp_path) == figures(trained)
    ours, theirs = (_averaged(folder).values() for folder in (tmp_path, trained))
    assert all(map(torch.equal, ours, theirs))


def _averaged(folder: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(folder).tree["objects"]["agent"]["learners"]["model"]["average"]


def test_a_task_whose_random_episodes_are_shorter_than_a_chunk_is_learned(tmp_path: Path) -> None:
    words = ["task=InvertedPendulum-v5", "length=40", "loop.env_steps=400", "loop.eval_every=400"]
    assert train(tmp_path / "run", *words) == exits.DONE
    last = read_records(tmp_path / "run" / "log.jsonl")[-1]
    assert last["updates"] > 150
    assert np.isfinite(last["termination_loss"])
    found = load(tmp_path / "run")
    assert found.model.config.termination
    assert found.replay is not None
    assert found.replay["terminated"].any()
    latent = ["embed", "preset=tiny", f"from={tmp_path / 'run'}", "loop.env_steps=20", "tensorboard=false"]
    assert cli.main(["train", *latent, f"run_dir={tmp_path / 'latent'}"]) == exits.DONE


def test_a_time_limit_stops_in_good_order(tmp_path: Path) -> None:
    assert train(tmp_path, "time_limit=0.01") == exits.INTERRUPTED
    assert load_checkpoint(tmp_path).step >= 1


def test_the_best_weights_are_kept_beside_the_last(trained: Path) -> None:
    objects = load_checkpoint(trained).tree["objects"]
    scores = [r["eval/mean"] for r in read_records(trained / "log.jsonl") if "eval/mean" in r]
    assert objects["trained"]["score"] == max(scores)
    last = _averaged(trained)
    kept = objects["trained"]["best" if scores[-1] == max(scores) else "last"]["model"]
    assert all(torch.equal(kept[name], x) for name, x in last.items())


def test_a_run_goes_on_from_another(trained: Path, tmp_path: Path) -> None:
    assert train(tmp_path / "on", f"from={trained}", "lr=1e-9", "seed=1", "loop.env_steps=300") == exits.DONE
    records = read_records(tmp_path / "on" / "log.jsonl")
    assert records[-1]["updates"] == 150  # there is data from the first step on
    before, after = (load(folder).model.state_dict() for folder in (trained, tmp_path / "on"))
    assert all(torch.allclose(after[name], x, atol=1e-4) for name, x in before.items())


@pytest.mark.usefixtures("pendulum_ships")
def test_a_run_goes_on_from_weights_alone(tmp_path: Path, plans: list[object]) -> None:
    assert train(tmp_path / "on", "from=pendulum", "loop.env_steps=600", "lr=1e-9", "seed=1") == exits.DONE
    assert read_records(tmp_path / "on" / "log.jsonl")[-1]["updates"] == 100  # seed episodes came first
    assert plans[0] is not None  # and were planned
    before, after = (load(what).model.state_dict() for what in ("pendulum", tmp_path / "on"))
    assert all(torch.allclose(after[name], x, atol=1e-4) for name, x in before.items())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task=cheetah-run"], "task must be Pendulum-v1"),
        (["model.hidden=8"], "model.hidden must be 16"),
        (["loop.n_envs=3"], "n_envs must be 2"),
        (["action_repeat=3"], "action_repeat must be 1"),
        (["length=300"], "length must be below the steps of some episode"),
        (["from=nothing"], "from must be a run folder or the name of pretrained weights"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_starts(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture, words: list[str], message: str
) -> None:
    assert train(tmp_path / "on", f"from={trained}", *words) == exits.USAGE
    assert message in capsys.readouterr().err
    assert not (tmp_path / "on").exists()


def test_presets_are_what_they_say() -> None:
    raw, paper, best = (planet.Config(**planet.PRESETS[name]) for name in ("paper-raw", "paper", "best"))
    assert (paper.planner.samples, paper.planner.elites, paper.planner.iterations) == (1000, 100, 10)
    assert paper.planner == paper.evaluation
    assert (paper.planner.horizon, paper.collecting.seed_episodes, paper.collecting.noise) == (12, 5, 0.3)
    assert raw.world_model == RSSMConfig()
    chosen = {"model": raw.model, "updates_per_step": 6.4, "clip": 1000.0, "average": 0.0}
    assert replace(paper, **chosen) == raw  # what the paper says is the same in both
    model = paper.world_model
    assert (model.members, model.pessimism, model.loss, model.predict_std) == (1, 0, "nll", True)
    assert (model.normalize, model.std, model.sample, model.reward_weight) == (True, 0.01, False, 10)
    assert best.world_model.angles == (1,)  # cheetah's pitch
    assert replace(best, task="walker-walk").world_model.angles == ()


# Servos hold the joints of the fish; the dog is large, and lqr has none.
DOMAINS = {
    domain: f"{domain}-{task}" for domain, task in suite.ALL_TASKS if domain not in ("fish", "dog", "lqr")
}


@pytest.mark.parametrize("task", sorted({*DOMAINS.values(), *planet.ANGLES} - {"HalfCheetah-v5"}))
def test_observations_that_are_angles_without_limits_are_known(task: str) -> None:
    """Those that a turn of a joint changes by 2π, where no limit holds it."""
    env = DMCEnv(task)
    observed, _ = env.reset(seed=0)
    found, model, joints = [], env.physics.model, env.physics.named.data.qpos
    for i in np.flatnonzero((model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE) & (model.jnt_limited == 0)):
        joints[model.joint(i).name] += 2 * np.pi
        env.physics.forward()
        found += [*np.flatnonzero(np.isclose(env._observe() - observed, 2 * np.pi, atol=1e-4))]
        joints[model.joint(i).name] -= 2 * np.pi
    assert tuple(found) == planet.ANGLES.get(task, ())


def test_eval_plays_every_episode_and_writes_them(trained: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["eval", str(trained), "--episodes", "3", "--at-once", "1", "--seed", "5"]) == exits.DONE
    with (trained / "evaluation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == ["5", "6", "7"]
    assert {row["length"] for row in rows} == {"200"}
    shown = capsys.readouterr().out
    mean = np.mean([float(row["return"]) for row in rows])
    assert f"mean      {mean:.2f}" in shown


def test_eval_keeps_what_it_has_when_it_is_stopped(
    trained: Path, tmp_path: Path, interrupt: Callable[[int], None], capsys: pytest.CaptureFixture
) -> None:
    interrupt(250)  # in the second episode
    words = ["--episodes", "3", "--at-once", "1", "--seed", "5", "--csv", str(tmp_path / "all.csv")]
    words += ["--samples", "10", "--tau", "0"]
    assert cli.main(["eval", str(trained), *words]) == exits.INTERRUPTED
    with (tmp_path / "all-first-1.csv").open() as file:
        assert [row["seed"] for row in csv.DictReader(file)] == ["5"]
    assert not (tmp_path / "all.csv").exists()
    rest = f"--seed 6 --samples 10 --tau 0.0 --episodes 2 --at-once 1 --csv {tmp_path / 'all.csv'}"
    assert f"dcem eval {trained} {rest}\n" in capsys.readouterr().err


def test_what_is_kept_of_a_run(trained: Path, tmp_path: Path) -> None:
    assert cli.main(["export", str(trained), "--name", "a-b", "--results", str(tmp_path)]) == exits.DONE
    kept = tmp_path / "planet" / "a-b" / "seed0"
    with (kept / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    logged = [row for row in read_records(trained / "log.jsonl") if "eval/mean" in row]
    assert float(rows[-1]["eval_mean"]) == logged[-1]["eval/mean"]
    assert int(rows[-1]["env_steps"]) == logged[-1]["env_steps"]
    assert json.loads((kept / "run.json").read_text())["experiment"] == "planet"

    table = tmp_path / "evaluations.csv"
    for run, seed in (("one", "5"), ("two", "5"), ("one", "6")):
        words = ["--episodes", "2", "--samples", "10", "--horizon", "2", "--seed", seed]
        words += ["--table", str(table), "--run", run]
        assert cli.main(["eval", str(trained), *words]) == exits.USAGE  # it is no longer the run's planner
        words += ["--controller", "less"]
        assert cli.main(["eval", str(trained), *words]) == exits.DONE
    with table.open() as file:
        found = [(row["controller"], row["run"], row["samples"], row["episode_seed"])
                 for row in csv.DictReader(file)]  # fmt: skip
    assert found == [("less", run, "10", s) for run, s in
                     (("one", "6"), ("one", "7"), ("two", "5"), ("two", "6"))]  # fmt: skip
    records = json.loads(table.with_suffix(".json").read_text())
    assert [name.split()[1:] for name in records] == [["less", "one"], ["less", "two"]]
    for record in records.values():
        assert record["seconds"] > 0
        assert (record["planner"]["samples"], record["planner"]["horizon"]) == (10, 2)


@pytest.mark.usefixtures("pendulum_ships")
def test_shipped_weights_play_like_the_run_they_came_from(trained: Path) -> None:
    both = [evaluate.load(what, CPU, samples=10) for what in (trained, "pendulum")]
    assert both[0].planner == both[1].planner
    assert both[0].planner.samples == 10
    ours, theirs = (list(evaluate.play(what, episodes=2, seed=0, n_envs=2)) for what in both)
    assert ours == theirs


def test_eval_says_what_it_cannot_find(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["eval", "no-such-thing"]) == exits.USAGE
    assert "there are no weights 'no-such-thing'" in capsys.readouterr().err
    assert cli.main(["eval", str(tmp_path)]) == exits.USAGE
    assert "must be a run folder or a shipped model" in capsys.readouterr().err


def test_statistics_against_scipy() -> None:
    returns = np.random.default_rng(0).normal(700, 50, 101)
    found = evaluate.statistics(returns)
    assert found["iqm"] == pytest.approx(scipy.stats.trim_mean(returns, 0.25))
    assert (found["q1"], found["median"], found["q3"]) == tuple(np.percentile(returns, [25, 50, 75]))
    interval = scipy.stats.bootstrap(
        (returns,), lambda x, axis: scipy.stats.trim_mean(x, 0.25, axis), method="percentile", rng=1
    ).confidence_interval
    assert found["iqm_low"] == pytest.approx(interval.low, abs=2)
    assert found["iqm_high"] == pytest.approx(interval.high, abs=2)


def test_one_episode_has_statistics_too() -> None:
    found = evaluate.statistics([3.0])
    assert {found[name] for name in ("mean", "median", "q1", "q3", "iqm", "iqm_low", "iqm_high")} == {3.0}


@pytest.fixture
def plane() -> Trained:
    planner = PlannerConfig(samples=4, elites=2, iterations=1, horizon=1)
    model = RSSM(2, 2, RSSMConfig(hidden=8, width=8))
    return Trained("plane", None, planner, model, experiment="planet")


def test_a_film_has_a_frame_an_action(
    plane: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controllers, "make_env", lambda *_, **options: Plane(**options))
    path, progress = tmp_path / "films" / "plane.mp4", Progress(20)
    episode = film(plane, path, seed=0, fps=10, each_step=progress.advance)
    assert episode.length == progress.done == 20
    with imageio.get_reader(path) as film_reader:
        assert film_reader.count_frames() == 20
        assert film_reader.get_meta_data()["size"] == (48, 32)
    about = json.loads(path.with_suffix(".json").read_text())
    assert (about["task"], about["seed"], about["total"]) == ("plane", 0, episode.total)
    assert about["controller"] == "full-cem"
    film(plane, path, seed=0, fps=10, controller="full-cem-single")
    assert json.loads(path.with_suffix(".json").read_text())["controller"] == "full-cem-single"


def test_what_cannot_be_drawn_is_not_filmed(
    plane: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Plane):
        def render(self) -> np.ndarray:
            raise OSError("no GL here")

    monkeypatch.setattr(controllers, "make_env", lambda *_, **options: Broken(**options))
    with pytest.raises(CannotDrawError, match=r"no GL here.*MUJOCO_GL=egl draws without a screen"):
        film(plane, tmp_path / "film.mp4", seed=0, fps=10)
    assert not (tmp_path / "film.mp4").exists()


def test_a_task_whose_way_to_draw_is_not_installed_says_what_to_install(
    plane: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MountainCarContinuous-v0 and Pendulum-v1 draw with pygame, to which MUJOCO_GL means nothing."""

    class NeedsPygame(Plane):
        def render(self) -> np.ndarray:
            raise gymnasium.error.DependencyNotInstalled("pygame is not installed, run `pip install …`")

    monkeypatch.setattr(controllers, "make_env", lambda *_, **options: NeedsPygame(**options))
    with pytest.raises(CannotDrawError, match="pygame is not installed, run") as refused:
        film(plane, tmp_path / "film.mp4", seed=0, fps=10)
    assert "MUJOCO_GL" not in str(refused.value)

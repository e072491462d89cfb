"""Benchmarks that fill a table from several machines: a device renews its own rows and keeps the others'."""

import csv
import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from dcem_lab import pretrained
from dcem_lab.suite.agents import PlannerConfig
from dcem_lab.suite.envs.dmc import make_env

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_a_device_renews_its_own_rows(script, tmp_path):
    path = tmp_path / "new" / "table.csv"
    put = script("rows").put
    put(path, [{"ms": 1, "device": "a"}, {"ms": 2, "device": "a"}], same=("device",))
    put(path, [{"ms": 3, "device": "b"}], same=("device",))
    put(path, [{"ms": 4, "device": "a"}], same=("device",))
    assert path.read_text() == "ms,device\n3,b\n4,a\n"


def test_a_row_says_where_it_comes_from(script):
    origin = script("rows").origin(torch.device("cpu"))
    assert list(origin) == ["device", "date", "commit", "torch"]
    assert origin["device"] and origin["date"].endswith(" UTC") and origin["torch"] == torch.__version__


def test_full_plans_are_measured_with_fewer_samples_too(script):
    planning = script("planning")
    found = {
        (source.task, controller): plan
        for _, controller, source, plan in planning.controllers(pretrained.available())
    }
    for task in ("cheetah-run", "walker-walk"):
        assert found[task, "full-cem"].samples == 1000
        for name, iterations in (("full-cem-100", 10), ("full-cem-100-T5", 5)):
            few = found[task, name]
            assert (few.samples, few.elites, few.iterations) == (100, 10, iterations)
    assert found["cheetah-run", "latent-dcem"].tau > 0
    assert ("cheetah-run", "latent-dcem-100") not in found
    assert found["cheetah-run", "full-cem-value"].policy_plans > 0


def test_a_longer_plan_takes_longer(script, monkeypatch):
    planning = script("planning")
    monkeypatch.setattr(planning, "SECONDS", {"cpu": 0.0})
    source = planning.load("cheetah-run")
    short, long = (
        planning.milliseconds(source, PlannerConfig(20, 4, iterations, horizon=4), 1, torch.device("cpu"))
        for iterations in (1, 20)
    )
    assert 0 < short < long


@pytest.mark.parametrize("space", ["latent", "full"])
def test_every_way_to_differentiate_a_plan_is_measured(script, monkeypatch, tmp_path, space):
    differentiation = script("differentiation")
    path = tmp_path / "rows.csv"
    monkeypatch.setattr(differentiation, "REPEATS", 1)
    monkeypatch.setattr("sys.argv", ["", "--tiny", "--states=1", f"--spaces={space}", f"--output={path}"])
    differentiation.main()
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert {row["backward"] for row in rows} == {"unroll", "checkpoint", "truncate", "prune"}
    assert all(float(row["ms"]) > 0 for row in rows)


@pytest.mark.parametrize("experiment", ["planet", "agent"])
def test_a_step_of_training_is_taken_apart(script, monkeypatch, tmp_path, capsys, experiment):
    loop, path = script("loop"), tmp_path / "loop.csv"
    words = [
        f"--experiment={experiment}",
        "--task=Pendulum-v1",
        "--steps=2",
        "--warmup=1",
        f"--output={path}",
    ]
    monkeypatch.setattr("sys.argv", ["", *words])
    loop.main()
    [row] = csv.DictReader(path.read_text().splitlines())
    assert (row["experiment"], row["preset"], row["task"]) == (experiment, "tiny", "Pendulum-v1")
    parts = [part for part in loop.PARTS if experiment == "agent" or part != "value_update"]
    assert all(float(row[part]) > 0 for part in (*parts, "step", "env_steps_per_s"))
    assert "environment steps per second" in capsys.readouterr().out


def test_the_exact_pendulum_is_that_of_gymnasium(script):
    pendulum, env = script("exact_pendulum").GymnasiumPendulum(), make_env("Pendulum-v1")
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        state = torch.from_numpy(observation).double()
        for push in torch.linspace(-1, 1, 60).sin().tolist():
            state, cost = pendulum.step(state, torch.tensor([push], dtype=torch.float64))
            observation, reward, *_ = env.step(np.array([push]))
            torch.testing.assert_close(state, torch.from_numpy(observation).double(), rtol=0, atol=1e-3)
            assert -cost.item() == pytest.approx(reward, abs=1e-3)


def test_decisions_are_timed_as_they_ship_and_in_less(script):
    decisions = script("decisions")
    names = dict(decisions.ways("cheetah-run-value"))
    assert list(names) == ["full-cem-value", "full-cem-value-bfloat16", "full-cem-value-T4", "policy"]
    assert list(dict(decisions.ways("cheetah-run-dcem"))) == ["latent-dcem", "latent-dcem-bfloat16"]
    agent = decisions.Agent.load("cheetah-run-value", **names["policy"])
    passed, busy = decisions.decide(agent, 2)
    assert busy > 0 and passed > 0
    plain = decisions.without_kernels("cheetah-run-value", {})
    assert type(plain._plan._imagination).__name__ == "_Copied"

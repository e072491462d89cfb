"""`dcem export` keeps a run where it belongs, whatever the run's record says."""

import json
from pathlib import Path

import pytest

from dcem_lab import cli
from dcem_lab.commands import exits

RECORD = {
    "experiment": "planet", "variant": "best", "seed": 0, "status": "finished", "config": {"task": "a"},
    "step": 2, "steps": 2,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path):
    """Makes a run folder with a record that differs in some of its entries."""

    def make(**changes) -> Path:
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        (folder / "run.json").write_text(json.dumps({**RECORD, **changes}))
        (folder / "log.jsonl").write_text('{"step": 1, "seconds": 2.5, "env_steps": 8, "return": 3.25}\n')
        return folder

    return make


def export(folder: Path, results: Path, *words: str) -> int:
    return cli.main(["export", str(folder), "--results", str(results), *words])


@pytest.mark.parametrize(
    ("experiment", "cells"),
    [("planet", "env_steps,updates,seconds,return,eval_mean,eval_median\n8,,2.5,3.25,,\n"),
     ("embed", "env_steps,updates,seconds,return,eval_mean,eval_median,decoder_cost\n8,,2.5,3.25,,,\n"),
     ("cartpole", "step,seconds,env_steps,return\n1,2.5,8,3.25\n"),
     ("some.module", "step,seconds,env_steps,return\n1,2.5,8,3.25\n")],
)  # fmt: skip
def test_every_experiment_has_the_same_layout(run, tmp_path, capsys, experiment, cells):
    results = tmp_path / "results"
    assert export(run(experiment=experiment, seed=3), results) == exits.DONE
    kept = results / experiment / "best" / "seed3"
    assert capsys.readouterr().out == f"{kept}\n"
    assert sorted(path.name for path in kept.iterdir()) == ["curve.csv", "run.json"]
    assert (kept / "curve.csv").read_text() == cells
    assert json.loads((kept / "run.json").read_text())["seed"] == 3


def test_a_name_takes_the_place_of_the_variants(run, tmp_path):
    assert export(run(variant="x,lr=0.1"), tmp_path / "results", "--name", "cheetah-run-x") == exits.DONE
    assert (tmp_path / "results" / "planet" / "cheetah-run-x" / "seed0" / "curve.csv").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"variant": "/absolute/path"}, "variant must be a name"),
        ({"variant": ".."}, "variant must be a name"),
        ({"variant": "../../outside"}, "variant must be a name"),
        ({"variant": "best/../../embed/best"}, "variant must be a name"),
        ({"variant": ["best"]}, "variant must be a name"),
        ({"variant": "best\n"}, "variant must be a name"),
        ({"experiment": "dmc"}, "experiment must be one of regression, cartpole"),
        ({"experiment": "../planet"}, "experiment must be a name"),
        ({"experiment": "/etc/x.y"}, "experiment must be a name"),
        ({"experiment": None}, "experiment must be a name"),
        ({"experiment": "cartpole-grid"}, "must be a run of cartpole-grid, as its record says, got KeyError"),
        ({"experiment": "regression"}, "must be a run of regression, as its record says, got KeyError"),
        ({"seed": "../../1"}, "seed must be a whole number"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": True}, "seed must be a whole number"),
    ],
)
def test_nothing_is_written_where_a_record_points_elsewhere(run, tmp_path, capsys, changes, said):
    folder, results = run(**changes), tmp_path / "deep" / "results"
    assert export(folder, results) == exits.USAGE
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_grid_cannot_name_its_members_elsewhere(run, tmp_path, capsys):
    config = {"latent_dims": ["/../../x"], "taus": [1.0], "seeds": [0]}
    assert export(run(experiment="cartpole-grid", config=config), tmp_path / "results") == exits.USAGE
    assert "variant must be letters" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_link_out_of_the_results_is_not_followed(run, tmp_path, capsys):
    results, outside = tmp_path / "results", tmp_path / "outside"
    outside.mkdir()
    (results / "planet").mkdir(parents=True)
    (results / "planet" / "best").symlink_to(outside)
    assert export(run(), results) == exits.USAGE
    assert "a link leads out of it" in capsys.readouterr().err
    assert not list(outside.iterdir())


def test_a_table_that_is_a_link_is_not_copied(run, tmp_path, capsys):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    folder = run(experiment="cartpole-baselines")
    (folder / "scores.csv").symlink_to(secret)
    assert export(folder, tmp_path / "results") == exits.USAGE
    assert "must be a regular file" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()

"""Sweeps: every run is done, failures are reported, a stop saves all, the same command does the rest."""

import signal
from pathlib import Path

import pytest

from dcem_lab.runs import load_checkpoint, read_record
from toy.command import TOY, dcem, start, wait_for


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def statuses(shown: str) -> list[str]:
    return [line.split("  ")[0] for line in shown.splitlines()]


def test_all_runs_are_done_and_failures_reported(capsys):
    assert dcem("preset=tiny", "seed=0,1", "fail_at=-1,2", "-m", "run_dir=all runs, here") == 1
    shown = capsys.readouterr().out
    assert statuses(shown) == ["finished", "failed", "finished", "failed"]
    assert "ArithmeticError: asked to fail" in shown.splitlines()[1]
    root = Path("all runs, here")
    assert sorted(path.name for path in root.iterdir()) == [".sweep", "tiny", "tiny,fail_at=2"]
    assert read_record(root / "tiny" / "seed1")["config"]["seed"] == 1
    assert dcem("preset=tiny", "seed=0,1", "-m", "run_dir=all runs, here") == 0


def test_a_sweep_ends_with_its_time_and_goes_on(capsys):
    words = ["updates=20", "pause=0.02", "seed=0,1", "-m"]
    assert dcem(*words, "time_limit=0.2") == 75
    assert statuses(capsys.readouterr().out) == ["interrupted", "not started"]
    assert dcem(*words) == 0
    assert statuses(capsys.readouterr().out) == ["finished", "finished"]


def test_a_folder_of_another_config_is_not_taken_for_done(capsys):
    assert dcem("preset=tiny", "seed=0", "-m", "run_dir=all") == 0
    path = Path("all/tiny/seed0/run.json")
    path.write_text(path.read_text().replace('"lr": 0.01', '"lr": 0.02'))
    assert dcem("preset=tiny", "seed=0", "-m", "run_dir=all") == 1
    shown = capsys.readouterr()
    assert "holds a run with lr=0.02 (now 0.01)" in shown.err
    assert "the folder holds a run with other settings" in shown.out


def test_a_missing_launcher_is_named(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert dcem("seed=0,1", "-m", "hydra/launcher=joblib") == 2
    shown = capsys.readouterr().err
    assert "hydra/launcher=joblib needs a package: pip install hydra-joblib-launcher" in shown


@pytest.mark.process
def test_a_cluster_that_is_not_there_is_an_error(monkeypatch):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    monkeypatch.setenv("PATH", "")
    process = start("preset=tiny", "seed=0,1", "-m", "hydra/launcher=submitit_slurm")
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith("the launcher submitit_slurm failed: Could not detect")
    assert len(errors.splitlines()) == 1
    assert statuses(shown) == ["not started", "not started"]


@pytest.mark.process
def test_on_all_cores_a_stop_saves_every_run():
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    words = ["seed=0,1", "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    process = start("updates=100000", "pause=0.01", *words)
    folders = [Path("runs", TOY, "updates=100000,pause=0.01", f"seed{seed}") for seed in (0, 1)]
    for folder in folders:
        wait_for(folder / "log.jsonl", '"loss"')
    process.send_signal(signal.SIGTERM)
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert statuses(shown) == ["interrupted", "interrupted"]
    for folder in folders:
        assert load_checkpoint(folder).step == read_record(folder)["step"] > 0

"""Sweeps: every run is done, failures are reported, a stop saves all, the same command does the rest."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from dcem_lab.commands.launchers import Slurm, _in_own_process
from dcem_lab.runs import load_checkpoint, read_record
from toy.command import TOY, dcem, start, wait_for, wait_until


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


@pytest.mark.parametrize(("launcher", "module"), [("joblib", "joblib"), ("slurm", "submitit")])
def test_a_missing_launcher_is_named(launcher, module, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, module, None)
    assert dcem("seed=0,1", "-m", f"launcher={launcher}") == 2
    shown = capsys.readouterr().err
    assert f"the module '{module}' is not installed; in a checkout, run pip install './lab[sweep]'" in shown
    assert len(shown.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_a_cluster_that_is_not_there_is_an_error(monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", "")
    process = start("preset=tiny", "seed=0,1", "-m", "launcher=slurm")
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith("the launcher slurm failed: Could not detect")
    assert len(errors.splitlines()) == 1
    assert statuses(shown) == ["not started", "not started"]


def test_finished_runs_are_not_launched_again(monkeypatch, capsys):
    assert dcem("preset=tiny", "seed=0,1", "-m") == 0
    monkeypatch.setenv("PATH", "")  # a cluster that is not there would be an error
    assert dcem("preset=tiny", "seed=0,1", "-m", "launcher=slurm") == 0
    assert statuses(capsys.readouterr().out)[2:] == ["finished", "finished"]


def test_an_unreadable_record_is_the_failure_of_one_run(capsys):
    assert dcem("preset=tiny", "seed=0,1", "-m", "run_dir=all") == 0
    Path("all/tiny/seed0/run.json").write_text("[")
    assert dcem("preset=tiny", "seed=0,1,2", "-m", "run_dir=all") == 1
    assert statuses(capsys.readouterr().out)[2:] == ["failed", "finished", "finished"]


def test_what_a_job_of_the_cluster_gets_is_said_in_the_words_of_submitit():
    asked = {"partition": "gpu", "gpus_per_node": 1, "mem_gb": 8.0, "timeout_min": 30}
    launcher = Slurm(**asked, sbatch=("exclusive", "nice=10"))
    assert launcher._parameters() == {
        "slurm_partition": "gpu",
        "timeout_min": 30,
        "gpus_per_node": 1,
        "mem_gb": 8.0,
        "slurm_array_parallelism": 256,
        "slurm_signal_delay_s": 120,
        "slurm_additional_parameters": {"exclusive": True, "nice": "10"},
    }


@pytest.mark.process
def test_on_all_cores_every_run_is_done_and_failures_reported():
    process = start("preset=tiny", "fail_at=-1,2", "-m", "launcher=joblib", "jobs=2")
    shown, errors = process.communicate(timeout=90)
    assert process.returncode == 1
    assert statuses(shown) == ["finished", "failed"]
    assert "ArithmeticError: asked to fail" in errors


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_on_all_cores_a_stop_saves_every_run_and_begins_no_other(number):
    words = ["updates=100000", "pause=0.01", "seed=range(3)", "-m", "launcher=joblib", "jobs=2"]
    process = start(*words, own_group=True)
    folders = [Path("runs", TOY, "updates=100000,pause=0.01", f"seed{seed}") for seed in (0, 1)]
    for folder in folders:
        wait_for(folder / "log.jsonl", '"loss"')
    if number == signal.SIGINT:  # as a terminal does it: to the command and its workers alike
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert statuses(shown) == ["interrupted", "interrupted", "not started"]
    for folder in folders:
        assert load_checkpoint(folder).step == read_record(folder)["step"] > 0


def test_on_all_cores_a_stop_is_no_failure_of_runs_that_are_only_starting():
    process = start("updates=100000", "pause=0.01", "seed=0,1,2", "-m", "launcher=joblib", "jobs=2")
    wait_until(lambda: len(workers(process.pid)) == 2)
    process.send_signal(signal.SIGTERM)
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert set(statuses(shown)) <= {"interrupted", "not started"}
    assert "launcher joblib failed" not in errors


def test_a_process_that_starts_after_the_stop_is_told():
    stopped = threading.Event()
    stopped.set()
    assert _in_own_process(time.sleep, 60, stopped) == -signal.SIGTERM


def test_on_all_cores_a_killed_run_takes_no_other_with_it():
    words = ["updates=100000,300,301", "pause=0.01", "-m"]
    process = start(*words, "launcher=joblib", "jobs=2")
    folder = Path("runs", TOY, "updates=100000,pause=0.01", "seed0")
    wait_for(folder / "log.jsonl", '"loss"')
    [victim] = [pid for pid in workers(process.pid) if holds(pid, folder / ".lock")]
    os.kill(victim, signal.SIGKILL)
    shown, errors = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "the launcher joblib failed: processes ended with exit codes -9" in errors
    assert statuses(shown) == ["running", "finished", "finished"]


def test_on_all_cores_a_sweep_ends_with_its_time():
    words = ["updates=100000", "pause=0.01", "seed=range(3)", "-m", "launcher=joblib", "jobs=2"]
    process = start(*words, "time_limit=8")
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert statuses(shown) == ["interrupted", "interrupted", "not started"]


def workers(parent: int) -> list[int]:
    """The processes that a sweep has started for its runs."""
    threads = Path(f"/proc/{parent}/task").glob("*/children")
    children = [int(child) for path in threads for child in path.read_text().split()]
    return [child for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]


def holds(pid: int, path: Path) -> bool:
    """Whether the process has the file open."""
    return any(link.exists() and link.samefile(path) for link in Path(f"/proc/{pid}/fd").iterdir())

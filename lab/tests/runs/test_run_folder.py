"""Runs: what they record, log, show and export_run, and which folders they refuse."""

import csv
import os
import signal
import time

import numpy as np
import pytest
import torch

from dcem_lab.runs import (
    CheckpointError,
    Interrupted,
    Progress,
    Run,
    RunError,
    export_run,
    load_checkpoint,
    read_record,
    read_records,
)
from dcem_lab.runs.files import seal, unseal
from toy.experiment import Config
from toy.training import figures, interrupted, train


def test_the_record_says_what_ran(tmp_path):
    train(tmp_path / "a", Config(seed=3, updates=4), variant="updates=4", command="dcem train toy")
    record = read_record(tmp_path / "a")
    expected = {
        "experiment": "toy",
        "variant": "updates=4",
        "seed": 3,
        "status": "finished",
        "step": 4,
        "steps": 4,
    }
    assert expected.items() <= record.items()
    assert record["config"]["updates"] == 4
    assert record["config"]["method"] == "ADAM"
    assert record["versions"]["torch"] == torch.__version__
    assert record["machine"]["cores"] == os.cpu_count()
    assert record["wall_seconds"] > 0
    assert len(record["sessions"]) == 1
    assert {"commit", "dirty", "started", "command", "error"} <= set(record)


def test_log_takes_numbers_only(tmp_path):
    with Run(tmp_path, Config(), tensorboard=False) as handle:
        handle.log(0, a=1, b=torch.tensor(2.5), c=np.float32(0.5), d=np.int64(3), e=torch.tensor([7]))
        for bad in ("text", torch.ones(2), None):
            with pytest.raises(TypeError, match="x must be a number or a tensor of one element"):
                handle.log(0, x=bad)
    [row] = figures(tmp_path)
    assert row == {"step": 0, "a": 1, "b": 2.5, "c": 0.5, "d": 3, "e": 7}


def test_a_torn_line_of_a_running_log_is_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 0}\n{"step": 1}\n{"ste')
    assert read_records(path) == [{"step": 0}, {"step": 1}]
    assert read_records(tmp_path / "none.jsonl") == []


def test_steps_once_a_run_and_only_with_what_can_be_saved(tmp_path):
    problem = r"state\['x'\] must have state_dict\(\) .* got int"
    with Run(tmp_path, Config(), tensorboard=False) as handle, pytest.raises(TypeError, match=problem):
        next(handle.steps(3, {"x": 3}))
    with Run(tmp_path, Config(), tensorboard=False) as handle:
        assert list(handle.steps(3, {})) == [0, 1, 2]
        with pytest.raises(RuntimeError, match="once in a run"):
            next(handle.steps(3, {}))


def test_a_run_that_has_saved_nothing_has_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["run.json", "log.jsonl", "checkpoints", "tensorboard", ".lock"])
def test_a_folder_with_a_link_in_it_is_refused(name, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious\n" * 100)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(elsewhere)
    with pytest.raises(RunError, match="must not be a link; link the whole run folder"):
        train(tmp_path / "run", Config(updates=1))
    assert elsewhere.read_text() == "precious\n" * 100


def test_a_run_folder_may_be_a_link(tmp_path):
    (tmp_path / "large disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "large disk")
    train(tmp_path / "run", Config(updates=2))
    assert load_checkpoint(tmp_path / "run").step == 2


def test_one_process_a_folder(tmp_path):
    with (
        Run(tmp_path, Config(), tensorboard=False),
        pytest.raises(RunError, match="another process is running in"),
        Run(tmp_path, Config(), tensorboard=False),
    ):
        pass


def test_another_config_is_refused_and_the_fields_are_named(tmp_path):
    train(tmp_path, Config(updates=3))
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(RunError, match=r"updates=3 \(now 4\), lr=0.01 \(now 0.5\); choose another run_dir"):
        train(tmp_path, Config(updates=4, lr=0.5))
    assert (tmp_path / "run.json").read_bytes() == before


def test_a_checkpoint_of_another_program_is_refused(tmp_path):
    config = Config(updates=3)
    train(tmp_path, config)
    with (
        pytest.raises(
            RunError, match=r"step 3 .* does not fit this program .*has .*'best'.* and this program has"
        ),
        Run(tmp_path, config, tensorboard=False) as handle,
    ):
        list(handle.steps(3, {"other": {}}))


def test_notes_that_are_no_numbers_are_refused(tmp_path):
    config = Config(updates=2)
    train(tmp_path, config)
    path = tmp_path / "checkpoints" / "step000000000002.json"
    path.write_bytes(seal({**unseal(path.read_bytes()), "notes": {"log_bytes": "x", "log_end": 2}}))
    with pytest.raises(RunError, match=r"notes of a checkpoint .* must be numbers"):
        train(tmp_path, config)


def test_a_log_that_lost_its_tail_is_refused(tmp_path):
    config = Config(updates=3)
    train(tmp_path, config)
    (tmp_path / "log.jsonl").write_bytes(b"")
    with pytest.raises(RunError, match="has 0 bytes, and its checkpoint has seen"):
        train(tmp_path, config)


def test_progress_in_a_line(monkeypatch, capsys):
    clock = iter([0.0, 20.0, 20.0, 20.0, 21.0, 30.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    progress = Progress(100, done=10, label="toy", bar=False)
    progress.show({"loss": 0.12345678, "lr": 1e-3, "a": 1, "b": 2, "hidden": 3})
    progress.advance()
    assert (
        capsys.readouterr().err
        == "toy 11/100 (11%), 0.05 steps/s, 29:40 left, loss=0.1235 lr=0.001 a=1 b=2\n"
    )
    progress.advance()
    assert capsys.readouterr().err == "", "not again within seconds"


def test_progress_as_a_bar(capsys):
    progress = Progress(3, label="toy", bar=True)
    for _ in range(3):
        progress.show({"loss": 0.5})
        progress.advance()
    progress.close()
    shown = capsys.readouterr().err
    assert "toy" in shown
    assert "3/3" in shown
    assert "loss=0.5" in shown


def test_export(tmp_path):
    for seed in (0, 1):
        train(tmp_path / f"run{seed}", Config(seed=seed, updates=3), variant="fast")
        [path] = export_run(tmp_path / f"run{seed}", tmp_path / "results")
        assert path == tmp_path / "results" / "toy" / "fast" / f"seed{seed}"
        assert read_record(path)["seed"] == seed
    rows = list(csv.DictReader((path / "curve.csv").read_text().splitlines()))
    assert list(rows[0]) == ["step", "seconds", "parameters", "loss", "lr", "best"]
    logged = read_records(tmp_path / "run1" / "log.jsonl")
    assert [float(row["loss"]) for row in rows if row["loss"]] == [
        row["loss"] for row in logged if "loss" in row
    ]


def test_an_unfinished_run_is_exported_as_far_as_it_came(tmp_path):
    with pytest.raises(Interrupted):
        interrupted(tmp_path, Config(), 2, signal.SIGTERM)
    [path] = export_run(tmp_path, tmp_path / "results")
    assert read_record(path)["status"] == "interrupted"
    with pytest.raises(RunError, match="cannot be read as the record of a run"):
        export_run(tmp_path / "none", tmp_path / "results")


def test_progress_without_a_stderr(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    progress = Progress(3, label="toy")
    progress.advance()
    progress.close()

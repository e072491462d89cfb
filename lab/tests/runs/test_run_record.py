"""The record of a run: whatever a stranger's run.json or log says, it is refused in one safe sentence."""

import json
import os

import pytest

from dcem_lab.runs import RunError, facts, load_checkpoint, read_record, read_records
from dcem_lab.runs.record import continued_record, recorded
from toy.experiment import Config
from toy.training import train

GOOD = {"experiment": "toy", "seed": 0, "config": {"lr": 0.1}, "status": "finished", "step": 3, "steps": 3}


def write(folder, **changes):
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({**GOOD, **changes}))


def deep(levels):
    tree = 0
    for _ in range(levels):
        tree = [tree]
    return tree


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": "3"}, "step must be a whole number from 0, got '3'"),
        ({"step": True}, "step must be a whole number"),
        ({"steps": 1.5}, "steps must be a whole number from 0, or null, got 1.5"),
        ({"steps": 10**400}, "steps must be a whole number"),
        ({"wall_seconds": float("nan")}, "wall_seconds must be a number from 0, got nan"),
        ({"config": [1]}, r"config must be an object, got \[1\]"),
        ({"config": None}, "config must be an object, got None"),
        ({"sessions": {}}, "sessions must be a list"),
        (
            {"status": "perfect"},
            "status must be one of running, finished, interrupted, failed, got 'perfect'",
        ),
        ({"error": {"a": 1}}, "error must be text or null"),
        ({"experiment": "../../elsewhere"}, "experiment must be a name"),
        ({"variant": ".."}, "variant must be a name"),
        ({"seed": "../x"}, "seed must be a whole number"),
        ({"config": {"lr": deep(100)}}, "must not be nested deeper than"),
        ({"command": "x" * 10_000, "seed": "y" * 10_000}, r"seed must be .{300,400}\.\.\.$"),
    ],
)
def test_a_field_of_another_type_is_named(change, message, tmp_path):
    write(tmp_path, **change)
    with pytest.raises(RunError, match=message):
        read_record(tmp_path)
    with pytest.raises(RunError, match=message):
        continued_record(tmp_path, GOOD["config"])


def test_what_a_stranger_wrote_does_not_reach_the_terminal_as_it_is(tmp_path):
    write(tmp_path, config={"lr\x1b[2J\n": "\x1b]0;title\x07"})
    with pytest.raises(RunError) as caught:
        continued_record(tmp_path, {"lr": 0.1})
    assert str(caught.value).isprintable()
    assert r"lr\x1b[2J\n=" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "line 2 of .* must be an object of numbers"),
        ('{"step": "1"}', "must be an object of numbers"),
        ('{"step": null}', "must be an object of numbers"),
        ('{"step": 1' + "0" * 400 + "}", "must be an object of numbers"),
        ("[" * 100_000, "must be JSON"),
        ("half", "must be JSON"),
        ("0" * (1 << 20), "longer than 1048576 bytes"),
    ],
)
def test_a_log_that_is_none_is_refused_with_its_line(line, message, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 0}\n' + line + "\n")
    with pytest.raises(ValueError, match=message):
        read_records(path)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_log_that_would_be_read_for_ever_is_refused(make, tmp_path):
    make(tmp_path / "log.jsonl")
    with pytest.raises(ValueError, match="must be a regular file"):
        read_records(tmp_path / "log.jsonl")
    with pytest.raises(RunError, match="must not be a"):
        train(tmp_path, Config(updates=1))


def test_a_log_of_something_else_is_left_alone(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"precious": 1}\n')
    with pytest.raises(
        RunError, match=r"has log.jsonl and no run.json that says of which run; choose another"
    ):
        train(tmp_path, Config(updates=1))
    assert log.read_text() == '{"precious": 1}\n'
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_checkpoints_of_an_unknown_config_are_not_resumed(tmp_path):
    train(tmp_path, Config(updates=3))
    (tmp_path / "run.json").unlink()
    (tmp_path / "log.jsonl").unlink()
    with pytest.raises(RunError, match=r"has checkpoints/step0+3\.\w+ and no run.json"):
        train(tmp_path, Config(updates=9, lr=0.5))
    assert load_checkpoint(tmp_path).step == 3


def test_a_run_killed_before_its_record_can_begin_again(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / "log.jsonl").touch()
    train(tmp_path, Config(updates=2))
    assert read_record(tmp_path)["status"] == "finished"


def test_a_measurement_is_recorded_with_its_command_and_the_commit_of_its_beginning(tmp_path, monkeypatch):
    now = {"commit": "a", "dirty": False}
    monkeypatch.setattr(facts, "commit", lambda: dict(now))
    with recorded(tmp_path, "some.module", "name", seed=3, horizons=[12, 24]) as record:
        record["length"] = 3
        now["dirty"] = True  # its results lie in the tree
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["length"] == 3
    assert record["command"] == "python -m some.module name --seed 3 --horizons 12 24"
    assert (record["commit"], record["dirty"]) == ("a", False)
    assert record["wall_seconds"] >= 0
    with pytest.raises(ZeroDivisionError), recorded(tmp_path / "failed", "some.module"):
        raise ZeroDivisionError
    assert not (tmp_path / "failed").exists()

"""`dcem sweep-status`: what a run's files say, in a table."""

import json
import os
import re
from pathlib import Path

import pytest

from dcem_lab import cli
from dcem_lab.commands.sweep_status import note_planned, runs_below, status, table
from toy.command import dcem


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_run(folder: Path, log: list[dict[str, float]], **record: object) -> None:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))


def test_a_sweep_is_shown_with_progress_errors_and_best_metrics(capsys):
    assert dcem("preset=tiny", "seed=0,1", "fail_at=-1,2", "-m", "run_dir=all") == 1
    capsys.readouterr()
    assert cli.main(["sweep-status", "all", "--metric", "loss"]) == 0
    extremes = ["lowest", "highest"]
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "status", "progress", "left", "seen", "metric", "newest", *extremes]
    run, state, steps, percent, metric, newest, lowest, highest = lines[2].split()
    logged = [json.loads(row) for row in Path("all/tiny/seed0/log.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in logged if "loss" in row]
    assert (run, state, steps, percent, metric) == ("tiny/seed0", "finished", "5/5", "100%", "loss")
    assert [newest, lowest, highest] == [f"{x:.4g}" for x in (losses[-1], min(losses), max(losses))]
    assert lines[0].split()[:4] == ["tiny,fail_at=2/seed0", "failed", "2/5", "40%"]
    assert "tiny,fail_at=2/seed1: ArithmeticError: asked to fail" in lines
    assert lines[-1] == "4 runs: 2 failed, 2 finished"


def test_runs_that_have_not_begun_are_listed():
    root = Path("all").resolve()
    note_planned(root, [root / "a" / "seed0"])
    note_planned(root, [root / "a" / "seed1", root / "b" / "seed0"])
    write_run(root / "b" / "seed0", [], status="running")
    write_run(root / "c" / "seed0", [], status="finished")
    assert runs_below(root) == ["a/seed0", "a/seed1", "b/seed0", "c/seed0"]
    assert [status(root, run)["status"] for run in runs_below(root)] == [
        "not started",
        "not started",
        "running",
        "finished",
    ]


def test_a_running_run_is_seen_by_its_log():
    log = [{"step": 0, "seconds": 0.1, "count": 1}, {"step": 40, "seconds": 20.0, "count": 2, "return": 3.0}]
    write_run(Path("all/seed0"), log, status="running", step=10, steps=100, wall_seconds=5.0)
    os.utime("all/seed0/run.json", (0, 0))
    found = status(Path("all"), "seed0")
    assert (found["progress"], found["left"], found["metric"]) == ("40/100  40%", "30 s", "return")
    assert [found[head] for head in ("newest", "lowest", "highest")] == ["3", "3", "3"]
    assert re.fullmatch(r"\d+ s ago", found["seen"])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, float("nan"), 3.0], "3 1 3"),
        ([1.0, float("inf")], "inf 1 1"),
        ([float("nan")], "nan nan nan"),
    ],
)
def test_the_best_is_finite(values, expected):
    log = [{"step": i, "seconds": i, "loss": value} for i, value in enumerate(values)]
    write_run(Path("all/seed0"), log, status="finished", step=3, steps=3)
    assert table([status(Path("all"), "seed0")]).splitlines()[1].split()[-3:] == expected.split()


def test_damaged_files_are_reported_and_do_not_hide_the_others():
    write_run(Path("all/a"), [], status="finished")
    write_run(Path("all/b"), [], status="finished")
    Path("all/b/run.json").write_text("{")
    write_run(Path("all/c"), [], status="finished")
    Path("all/c/log.jsonl").write_text("half\n")
    rows = [status(Path("all"), run) for run in runs_below(Path("all"))]
    assert [row["status"] for row in rows] == ["finished", "damaged", "damaged"]
    assert "b/run.json cannot be read as the record of a run" in table(rows)


def test_a_plan_from_elsewhere_stays_inside_the_folder():
    Path("all/.sweep").mkdir(parents=True)
    Path("all/.sweep/runs.json").write_text(json.dumps(["../secret", "/etc", "mine/seed0"]))
    assert runs_below(Path("all")) == ["mine/seed0"]
    Path("all/.sweep/runs.json").write_text("half")
    assert runs_below(Path("all")) == []


def test_a_run_without_a_record_of_steps():
    assert table([{"run": "a", "status": "running"}]).splitlines()[1] == "a    running"


@pytest.mark.parametrize("folder", ["none", "."])
def test_no_runs_is_a_usage_error(folder, capsys):
    assert cli.main(["sweep-status", folder]) == 2
    assert "dcem sweep-status: " in capsys.readouterr().err


def test_one_malformed_run_does_not_hide_the_others(capsys):
    write_run(Path("all/good"), [], status="finished", step=3, steps=3)
    for number, record in enumerate(
        ([1], {"status": "running", "step": "3", "steps": "4"}, {"steps": 0.5}, 7)
    ):
        write_run(Path(f"all/bad{number}"), [])
        Path(f"all/bad{number}/run.json").write_text(json.dumps(record))
    write_run(Path("all/log0"), [], status="running", step=3, steps=3)
    Path("all/log0/log.jsonl").write_text('{"loss": "low"}\n')
    os.mkfifo("all/pipe")
    Path("all/.sweep").mkdir()
    Path("all/.sweep/runs.json").write_text(json.dumps(["x" * 5000, "nul\0", "half\ud800", 3, "planned"]))
    assert cli.main(["sweep-status", "all"]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == "8 runs: 6 damaged, 1 finished, 1 not started"
    assert "bad1: all/bad1/run.json: step must be a whole number from 0, got '3'" in shown


@pytest.mark.parametrize("seconds", [float("inf"), float("nan")])
def test_a_time_that_is_no_number_leaves_out_what_is_left(seconds):
    log = [{"step": 3, "seconds": seconds, "loss": 0.5}]
    write_run(Path("all/seed0"), log, status="running", step=3, steps=9)
    assert status(Path("all"), "seed0").get("left", "") in ("", "0 s")


def test_what_a_stranger_s_files_say_does_not_reach_the_terminal_as_it_is(capsys):
    evil = "\x1b]0;owned\x07\r\n\x9b2J\u202e"
    log = [{"step": 1, "seconds": 1.0, f"loss{evil}": 0.5}]
    write_run(Path(f"all/{evil}"), log, status="failed", error=f"oh{evil}no", step=1, steps=2)
    os.mkdir(b"all/\xff")
    Path("all", os.fsdecode(b"\xff"), "run.json").write_text("{}")
    assert cli.main(["sweep-status", "all"]) == 0
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    assert r"loss\x1b]0;owned\x07\r\n\x9b2J\u202e" in shown
    assert r"\udcff" in shown
    assert len(shown.splitlines()) == 8

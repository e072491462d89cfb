"""Runs: what they record, log and show, how they stop, and how they go on."""

import csv
import dataclasses
import json
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import torch

from dcem.runs import (
    CheckpointError,
    Interrupted,
    Progress,
    Run,
    RunError,
    export_csv,
    load_checkpoint,
    read_record,
    read_records,
    require,
    rng_state,
    seed_everything,
    set_rng_state,
)
from dcem.runs.config import check_numbers, variant
from dcem.runs.files import seal, unseal
from dcem.runs.signals import StopRequests
from toy.experiment import Config, run


def train(folder, config: Config, **options) -> None:
    with Run(folder, config, experiment="toy", tensorboard=False, **options) as handle:
        run(config, handle)


def figures(folder) -> list[dict[str, float]]:
    """The log without the seconds, which no two runs share."""
    return [
        {key: value for key, value in row.items() if key != "seconds"}
        for row in read_records(folder / "log.jsonl")
    ]


def saved(folder) -> list[object]:
    """Everything in the checkpoint, in a form that can be compared."""
    checkpoint = load_checkpoint(folder)
    return [checkpoint.step, repr(checkpoint.tree)]


@pytest.fixture(autouse=True)
def exact_repr():
    torch.set_printoptions(precision=20, threshold=10**9)
    np.set_printoptions(precision=20, threshold=10**9)
    yield
    torch.set_printoptions(profile="default")
    np.set_printoptions(precision=8, threshold=1000)


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


def test_the_same_seed_gives_the_same_run_and_another_does_not(tmp_path):
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        train(tmp_path / name, Config(seed=seed, updates=6))
    assert figures(tmp_path / "a") == figures(tmp_path / "b") != figures(tmp_path / "c")
    assert saved(tmp_path / "a") == saved(tmp_path / "b") != saved(tmp_path / "c")


@pytest.mark.parametrize("stop_at", [0, 1, 7, 18, 19])
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, stop_at):
    config = Config(updates=20)
    train(tmp_path / "unbroken", config)
    with pytest.raises(Interrupted, match=f"SIGTERM: saved at step {stop_at + 1} of 20"):
        interrupted(tmp_path / "broken", config, stop_at, signal.SIGTERM)
    assert read_record(tmp_path / "broken")["status"] == "interrupted"
    random.seed(99)
    torch.manual_seed(99)
    train(tmp_path / "broken", config)
    assert figures(tmp_path / "broken") == figures(tmp_path / "unbroken")
    assert saved(tmp_path / "broken") == saved(tmp_path / "unbroken")
    assert len(read_record(tmp_path / "broken")["sessions"]) == 2


def interrupted(folder, config: Config, step: int, *numbers: signal.Signals) -> None:
    """Train, and get the signals in the middle of a step."""
    with Run(folder, config, experiment="toy", tensorboard=False) as handle:
        write = handle.log

        def log(at, **scalars):
            write(at, **scalars)
            if at == step and "loss" in scalars:
                for number in numbers:
                    os.kill(os.getpid(), number)

        handle.log = log
        run(config, handle)


def test_a_failed_run_goes_on_from_its_last_checkpoint_and_repairs_its_log(tmp_path):
    config = Config(updates=12, save_every=0.0, fail_at=7)
    train(tmp_path / "unbroken", Config(updates=12))
    with pytest.raises(ArithmeticError):
        train(tmp_path / "broken", config)
    record = read_record(tmp_path / "broken")
    assert (record["status"], record["error"]) == ("failed", "ArithmeticError: asked to fail")
    with (tmp_path / "broken" / "log.jsonl").open("ab") as log:
        log.write(b'{"step": 7, "seconds": 1.0, "loss": 3}\n{"step": 8, "lo')
    record["config"]["fail_at"] = -1
    record["config"]["save_every"] = 60.0
    (tmp_path / "broken" / "run.json").write_text(json.dumps(record))
    train(tmp_path / "broken", Config(updates=12))
    assert figures(tmp_path / "broken") == figures(tmp_path / "unbroken")


def test_a_torn_line_of_a_running_log_is_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 0}\n{"step": 1}\n{"ste')
    assert read_records(path) == [{"step": 0}, {"step": 1}]
    assert read_records(tmp_path / "none.jsonl") == []


def test_seconds_add_up_over_sessions(tmp_path):
    config = Config(updates=6, pause=0.02)
    with pytest.raises(Interrupted):
        interrupted(tmp_path, config, 2, signal.SIGTERM)
    first = read_record(tmp_path)["wall_seconds"]
    train(tmp_path, config)
    assert read_record(tmp_path)["wall_seconds"] > first
    seconds = [row["seconds"] for row in read_records(tmp_path / "log.jsonl")]
    assert seconds == sorted(seconds)


def test_time_limit(tmp_path):
    with pytest.raises(Interrupted, match="time limit: saved at step"):
        train(tmp_path, Config(updates=10**6, pause=0.01), time_limit=0.1)
    assert 1 <= load_checkpoint(tmp_path).step <= 11


def test_ctrl_c_twice_stops_in_the_middle_of_a_step(tmp_path):
    config = Config(updates=20, save_every=0.0)
    with pytest.raises(Interrupted, match="at once by SIGINT"):
        interrupted(tmp_path / "broken", config, 5, signal.SIGINT, signal.SIGINT)
    assert load_checkpoint(tmp_path / "broken").step == 5
    train(tmp_path / "unbroken", config)
    train(tmp_path / "broken", config)
    assert saved(tmp_path / "broken") == saved(tmp_path / "unbroken")


def test_sigterm_twice_counts_once(tmp_path):
    with pytest.raises(Interrupted, match="SIGTERM: saved at step 6 of 20"):
        interrupted(tmp_path, Config(updates=20), 5, signal.SIGTERM, signal.SIGTERM)


def test_outside_of_the_loop_a_signal_stops_at_once(tmp_path):
    with pytest.raises(Interrupted, match="at once by SIGTERM"), Run(tmp_path, Config(), tensorboard=False):
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("not reached")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_a_schedulers_announcement_is_passed_on_after_saving(tmp_path):
    """As in a job of submitit, which ignores SIGTERM and queues the job again on SIGUSR2."""
    seen = []
    before = {
        number: signal.signal(
            number, lambda number, frame: seen.append((number, read_record(tmp_path)["status"]))
        )
        for number in (signal.SIGTERM, signal.SIGUSR2)
    }
    try:
        with pytest.raises(Interrupted, match="SIGUSR2: saved at step 4 of 20"):
            interrupted(tmp_path, Config(updates=20), 3, signal.SIGTERM, signal.SIGUSR2)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert seen == [(signal.SIGTERM, "running"), (signal.SIGUSR2, "interrupted")]


def test_a_sigterm_that_belongs_to_another_saves_and_the_run_goes_on(tmp_path):
    """As in a job of submitit: the scheduler may be about to kill it, or may not."""
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(read_record(tmp_path)["step"]))
    config = Config(updates=12, save_every=1000.0)
    try:
        interrupted(tmp_path, config, 3, signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [0], "it is passed on at once, before the step in hand is saved"
    assert read_record(tmp_path)["status"] == "finished"
    kept = sorted(path.name for path in (tmp_path / "checkpoints").glob("*.json"))
    assert kept == ["step000000000004.json", "step000000000012.json"]


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


def test_notes_that_are_no_numbers_are_refused(tmp_path):
    config = Config(updates=2)
    train(tmp_path, config)
    path = tmp_path / "checkpoints" / "step000000000002.json"
    path.write_bytes(seal({**unseal(path.read_bytes()), "notes": {"log_bytes": "x", "log_end": 2}}))
    with pytest.raises(RunError, match=r"notes of a checkpoint .* must be numbers"):
        train(tmp_path, config)


def test_without_a_main_thread_there_are_no_handlers_but_the_run_works(tmp_path):
    thread = threading.Thread(target=train, args=(tmp_path, Config(updates=3)))
    thread.start()
    thread.join()
    assert read_record(tmp_path)["status"] == "finished"


def test_a_handler_that_ignores_is_left_alone():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequests():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


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


def test_a_log_that_lost_its_tail_is_refused(tmp_path):
    config = Config(updates=3)
    train(tmp_path, config)
    (tmp_path / "log.jsonl").write_bytes(b"")
    with pytest.raises(RunError, match="has 0 bytes, and its checkpoint has seen"):
        train(tmp_path, config)


def test_steps_once_a_run_and_only_with_what_can_be_saved(tmp_path):
    problem = r"state\['x'\] must have state_dict\(\) .* got int"
    with Run(tmp_path, Config(), tensorboard=False) as handle, pytest.raises(TypeError, match=problem):
        next(handle.steps(3, {"x": 3}))
    with Run(tmp_path, Config(), tensorboard=False) as handle:
        assert list(handle.steps(3, {})) == [0, 1, 2]
        with pytest.raises(RuntimeError, match="once in a run"):
            next(handle.steps(3, {}))


def test_saving_by_hand(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        load_checkpoint(tmp_path)
    with Run(tmp_path, Config(), tensorboard=False) as handle:
        assert handle.load() is None
        handle.save(5, {"x": torch.ones(2)})
        handle.log(5, x=1)
    with Run(tmp_path, Config(), tensorboard=False) as handle:
        checkpoint = handle.load()
        assert (checkpoint.step, checkpoint.tree["x"].tolist()) == (5, [1, 1])
        assert handle.load() is None
        assert read_records(tmp_path / "log.jsonl") == []


def test_log_takes_numbers_only(tmp_path):
    with Run(tmp_path, Config(), tensorboard=False) as handle:
        handle.log(0, a=1, b=torch.tensor(2.5), c=np.float32(0.5), d=np.int64(3), e=torch.tensor([7]))
        for bad in ("text", torch.ones(2), None):
            with pytest.raises(TypeError, match="x must be a number or a tensor of one element"):
                handle.log(0, x=bad)
    [row] = figures(tmp_path)
    assert row == {"step": 0, "a": 1, "b": 2.5, "c": 0.5, "d": 3, "e": 7}


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = Config(updates=6, save_every=0.0, fail_at=4)
    for fail_at in (4, -1):
        config = Config(updates=6, save_every=0.0, fail_at=fail_at)
        if fail_at == -1:
            record = read_record(tmp_path)
            record["config"]["fail_at"] = -1
            (tmp_path / "run.json").write_text(json.dumps(record))
        try:
            with Run(tmp_path, config) as handle:
                run(config, handle)
        except ArithmeticError:
            pass
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(6))


def test_export(tmp_path):
    for seed in (0, 1):
        train(tmp_path / f"run{seed}", Config(seed=seed, updates=3), variant="fast")
        path = export_csv(tmp_path / f"run{seed}", tmp_path / "results")
        assert path == tmp_path / "results" / "toy" / "fast" / f"seed{seed}.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert list(rows[0]) == ["step", "seconds", "parameters", "loss", "lr", "best"]
    logged = read_records(tmp_path / "run1" / "log.jsonl")
    assert [float(row["loss"]) for row in rows if row["loss"]] == [
        row["loss"] for row in logged if "loss" in row
    ]
    records = json.loads((path.parent / "run.json").read_text())
    assert [records[f"seed{seed}"]["seed"] for seed in (0, 1)] == [0, 1]


def test_export_of_an_unfinished_run_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        interrupted(tmp_path, Config(), 2, signal.SIGTERM)
    with pytest.raises(RunError, match="is interrupted; only a finished run"):
        export_csv(tmp_path, tmp_path / "results")
    with pytest.raises(RunError, match="cannot be read as the record of a run"):
        export_csv(tmp_path / "none", tmp_path / "results")


def test_every_generator_is_restored():
    given = {
        "torch": torch.Generator(),
        "numpy": np.random.default_rng(1),
        "mt": np.random.Generator(np.random.MT19937(2)),
    }

    def draw():
        return [
            random.random(),
            np.random.rand(),  # noqa: NPY002
            torch.rand(1).item(),
            torch.rand(1, generator=given["torch"]).item(),
            given["numpy"].normal(),
            given["mt"].normal(),
        ]

    seed_everything(5)
    state = rng_state(**given)
    first = draw()
    assert draw() != first
    set_rng_state(state, **given)
    assert draw() == first
    with pytest.raises(ValueError, match=r"generators must be \['mt', 'numpy', 'torch'\], got \[\]"):
        set_rng_state(state)
    with pytest.raises(ValueError, match="seed must be from 0 to 4294967295, got -1"):
        seed_everything(-1)


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": float("inf")}, "lr must be finite, got inf"),
        ({"pause": float("nan")}, "pause must be finite, got nan"),
        ({"updates": 10**30}, "updates must be below .* in size"),
        ({"hidden": (4, 10**30)}, "hidden must be below .* in size"),
    ],
)
def test_numbers_nobody_can_use_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        check_numbers(Config(**change))
    check_numbers(Config())


def test_variants_are_named_by_what_they_change():
    base = Config()
    assert variant(base, base) == "default"
    assert variant(Config(seed=4), base) == "default"
    assert variant(base, base, "tiny") == "tiny"
    assert variant(Config(lr=0.5, hidden=(3, 4)), base) == "lr=0.5,hidden=3+4"
    assert variant(Config(lr=0.5), base, "tiny") == "tiny,lr=0.5"
    odd = [variant(Config(note=note), base) for note in ("a b", "a/b", "../a", "x" * 300, "x" * 301)]
    assert len(set(odd)) == 5
    assert all("/" not in name and " " not in name and len(name) < 120 for name in odd)


def test_require():
    require(True, "x", 1, "anything")
    with pytest.raises(ValueError, match=r"^lr must be positive, got -1$"):
        require(False, "lr", -1, "positive")
    with pytest.raises(ValueError, match="updates must be at least 1, got 0"):
        dataclasses.replace(Config(), updates=0)

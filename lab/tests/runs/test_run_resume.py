"""Runs: how they stop, and how they go on as if they had not."""

import json
import os
import random
import signal
import threading

import numpy as np
import pytest
import torch

from dcem_lab.runs import Interrupted, Run, load_checkpoint, read_record, read_records, seed_everything
from dcem_lab.runs.signals import StopRequests
from dcem_lab.runs.state import capture, restore
from toy.experiment import Config, run
from toy.training import figures, interrupted, train


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


def test_the_same_seed_gives_the_same_run_and_another_does_not(tmp_path):
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        train(tmp_path / name, Config(seed=seed, updates=6))
    assert figures(tmp_path / "a") == figures(tmp_path / "b") != figures(tmp_path / "c")
    assert saved(tmp_path / "a") == saved(tmp_path / "b") != saved(tmp_path / "c")


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
    state = capture(given)
    first = draw()
    assert draw() != first
    restore(given, state)
    assert draw() == first
    with pytest.raises(ValueError, match="seed must be from 0 to 4294967295, got -1"):
        seed_everything(-1)


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

"""Commands that nobody listens to, that are stopped while they start, or run under a poor locale."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dcem_lab.commands import exits
from dcem_lab.runs import load_checkpoint, read_record
from toy.command import TOY
from toy.training import figures

pytestmark = pytest.mark.process

HANG = 600  # seconds: not a limit that anything should come near


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def command(*words: str, module: str = "toy.talkative", **options: object) -> subprocess.Popen:
    """By default one that says something at every step."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= options.pop("env", {})
    return subprocess.Popen([sys.executable, "-m", module, *words], env=environment, **options)


def train(folder: str, **options: object) -> subprocess.Popen:
    return command("train", TOY, "updates=30", "tensorboard=false", f"run_dir={folder}", **options)


def is_complete(folder: str) -> bool:
    finished = read_record(folder)["status"] == "finished" and load_checkpoint(folder).step == 30
    return finished and [row["step"] for row in figures(Path(folder)) if "loss" in row] == list(range(30))


def pipe_without_reader() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


def terminal_that_hung_up() -> int:
    ours, theirs = pty.openpty()
    os.close(ours)
    return theirs


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize("stream", [pipe_without_reader, terminal_that_hung_up, full_disk])
def test_a_training_goes_on_when_nobody_reads_its_progress(stream: Callable[[], int]) -> None:
    descriptor = stream()
    process = train("here", stdout=subprocess.DEVNULL, stderr=descriptor)
    os.close(descriptor)
    assert process.wait(HANG) == exits.DONE
    assert is_complete("here")


def test_a_reader_that_goes_in_the_middle_of_a_training_does_not_end_it() -> None:
    """As `dcem train ... 2>&1 | head` does."""
    process = train("here", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert "1/30" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(HANG) == exits.DONE
    assert is_complete("here")


@pytest.mark.parametrize("closed", [">&- 2>&-", "<&- >&- 2>&-", "2>&-"])
def test_streams_that_were_closed_from_the_start_are_no_error(closed: str) -> None:
    words = ["train", TOY, "updates=30", "tensorboard=false", "run_dir=here"]
    shell = ["bash", "-c", f'exec "$@" {closed}', "bash", sys.executable, "-m", "toy.talkative", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(shell, env=environment, timeout=HANG).returncode == exits.DONE
    assert is_complete("here"), "and nothing that was said went into another file"


def test_the_workers_of_a_sweep_outlive_their_reader_too() -> None:
    launcher = ["-m", "launcher=joblib", "jobs=2"]
    words = ["train", TOY, "preset=tiny", "seed=0,1", "tensorboard=false", "run_dir=all", *launcher]
    descriptor = pipe_without_reader()
    process = command(*words, module="dcem_lab", stdout=descriptor, stderr=descriptor)
    os.close(descriptor)
    assert process.wait(HANG) == exits.DONE
    assert [read_record(f"all/tiny/seed{seed}")["status"] for seed in (0, 1)] == ["finished", "finished"]


def test_a_reader_that_has_gone_is_no_accident() -> None:
    descriptor = pipe_without_reader()
    words = ["train", TOY, "--dry-run", "preset=tiny"]
    process = command(*words, stdout=descriptor, stderr=subprocess.PIPE, text=True)
    os.close(descriptor)
    assert process.communicate(timeout=HANG) == (None, "")
    assert process.returncode == exits.DONE


def test_an_answer_that_does_not_fit_on_the_disk_does_not_pass_for_success() -> None:
    with Path("/dev/full").open("w") as full:
        process = command("train", TOY, "--dry-run", stdout=full, stderr=subprocess.PIPE, text=True)
        _, shown = process.communicate(timeout=HANG)
    assert process.returncode == exits.FAILED
    assert shown.splitlines() == ["dcem train: [Errno 28] No space left on device"]


def test_a_locale_without_letters_is_enough() -> None:
    """Names and errors with letters that it lacks are shown spelled out, and files are UTF-8 anyway."""
    poor = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert train("Läufe/größe", env=poor, stderr=subprocess.DEVNULL).wait(HANG) == exits.DONE
    assert is_complete("Läufe/größe")
    process = command("sweep-status", "Läufe", env=poor, stdout=subprocess.PIPE)
    shown, _ = process.communicate(timeout=HANG)
    assert process.returncode == exits.DONE
    assert b"gr\\udcc3\\udcb6\\udcc3\\udc9fe" in shown
    assert b"1 runs: 1 finished" in shown


STOPPED = """
import os, signal, sys
from dcem_lab.cli import main

class Interrupts:
    def find_spec(self, name, *_):
        if name == {module!r}:
            sys.meta_path.remove(self)
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except BaseException:  # as libraries do that try whether something can be imported
                pass

sys.meta_path.insert(0, Interrupts())
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["argparse", "importlib.metadata", "dcem_lab.runs", "torch"])
def test_a_command_that_is_stopped_while_it_starts_says_so_and_no_more(module: str) -> None:
    program = [sys.executable, "-c", STOPPED.format(module=module), "train", TOY, "preset=tiny"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=HANG)
    assert (done.returncode, done.stdout) == (exits.INTERRUPTED, "")
    assert done.stderr in ("dcem: stopped\n", "dcem train: stopped\n")

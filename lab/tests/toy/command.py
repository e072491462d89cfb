"""`dcem train` on the toy experiment, in this process or in one of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dcem_lab import cli

TOY = "toy.experiment"


def dcem(*words: str) -> int:
    """The command in this process, without TensorBoard; its exit code."""
    return cli.main(["train", TOY, "tensorboard=false", *words])


def start(*words: str, own_group: bool = False) -> subprocess.Popen:
    """The command in a process of its own; with `own_group`, `os.killpg` reaches its workers, too."""
    return subprocess.Popen(
        [sys.executable, "-m", "dcem_lab", "train", TOY, "tensorboard=false", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=own_group,
    )


def wait_for(path: Path, text: str) -> None:
    """Until the file has the text."""
    wait_until(lambda: path.exists() and text in path.read_text())


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)

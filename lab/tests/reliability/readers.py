"""Whoever reads a training's output goes away at a random moment, or was never there: it ends as always."""

from __future__ import annotations

import math
import os
import pty
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from reliability.outcome import Outcome
from reliability.training import ENVIRONMENT, TOY, digest

PATIENCE = 300  # seconds, against a hang
KINDS = ("pipe", "terminal", "nobody")


def measure(count: int, folder: Path) -> Outcome:
    """Trainings that write a line, or their bar, at every step."""
    chance = random.Random(0)
    expected, failures = "", []
    for trial in range(count + 1):  # the first is left in peace
        kind = KINDS[trial % len(KINDS)]
        code = train(folder / f"run{trial}", kind, chance.random() / 2 if trial else None)
        found = digest(folder / f"run{trial}") if code == 0 else ""
        expected = expected or found
        if code != 0 or found != expected:
            failures.append(f"try {trial}, {kind}: exit code {code}, SHA-256 {found or 'none'}")
    return Outcome(count, failures, notes=f"{', '.join(KINDS)} in turn; trainings of {TOY}")


def train(run: Path, kind: str, leave_after: float | None) -> int:
    """Its exit code; the reader leaves so many seconds after the first thing it has read."""
    words = ["train", TOY, "updates=60", "pause=0.01", "tensorboard=false", f"run_dir={run}"]
    command = [sys.executable, "-m", "toy.talkative", *words]
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    if kind == "nobody" and leave_after is not None:
        closing = ["bash", "-c", 'exec "$@" >&- 2>&-', "bash", *command]
        return subprocess.run(closing, env=environment, timeout=PATIENCE).returncode
    ours, theirs = pty.openpty() if kind == "terminal" else os.pipe()
    process = subprocess.Popen(command, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.read(ours, 1)
    left = math.inf if leave_after is None else time.monotonic() + leave_after
    with suppress(OSError):  # how a terminal says that the other side has gone
        while time.monotonic() < left and os.read(ours, 1 << 16):
            pass
    os.close(ours)
    return process.wait(PATIENCE)

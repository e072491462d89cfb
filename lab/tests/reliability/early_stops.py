"""Ctrl-C while `dcem train` still starts: it says that it has stopped, exit code 75, no traceback."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from reliability.outcome import Outcome
from reliability.training import ENVIRONMENT, TOY

# Until here it is Python that starts, which has its own way with Ctrl-C.
PROGRAM = "import os, sys; from dcem_lab.cli import main; os.write(1, b'.'); sys.exit(main())"
PATIENCE = 60  # seconds, against a hang
SAID = re.compile(
    r"dcem( train)?: stopped\n|(stopped at once by SIGINT|SIGINT: saved at step \d+ of \d+), in "
)


def measure(count: int, folder: Path) -> Outcome:
    """From the first moment of the command to the first steps of the training."""
    chance = random.Random(0)
    failures, moments = [], Counter[str]()
    paths = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    for trial in range(count):
        run = folder / f"run{trial}"
        words = ["train", TOY, "updates=1000000", "pause=0.01", "tensorboard=false", f"run_dir={run}"]
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            env={**ENVIRONMENT, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.read(1)
        time.sleep(3 * chance.random() ** 2)  # more often early
        process.send_signal(signal.SIGINT)
        try:
            _, shown = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:  # it has not heard it
            process.kill()
            _, shown = process.communicate()
        said = SAID.match(shown.decode())
        moments["before" if said and said[0].endswith("stopped\n") else "after"] += 1
        if process.returncode != 75 or not said or "Traceback" in shown.decode():
            failures.append(f"try {trial}: exit code {process.returncode}: {shown.decode()[-300:]}")
    notes = f"{moments['before']} before the run had begun, {moments['after']} in it"
    return Outcome(count, failures, notes=notes)

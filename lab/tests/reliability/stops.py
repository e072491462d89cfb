"""SIGTERM at random moments of `dcem train`: saved, exit code 75, no logged step lost."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from dcem_lab.runs import load_checkpoint, read_record, read_records
from reliability.outcome import Outcome
from reliability.training import TOY, dcem

# Long enough that nobody finishes: whoever does is a failure here.
TRAININGS = [
    [TOY, "updates=1000000", "pause=0.005"],
    ["regression", "preset=quick", "updates=1000000", "eval_every=1"],
    ["cartpole", "preset=quick", "updates=1000000", "validate_every=5"],
    ["planet", "preset=tiny", "env_steps=100000000", "log_every=1"],
]


def measure(count: int, folder: Path) -> Outcome:
    chance = random.Random(0)
    failures, slowest = [], 0.0
    for trial in range(count):
        run = folder / f"run{trial}"
        words = TRAININGS[trial % len(TRAININGS)]
        process = dcem("train", *words, f"run_dir={run}", "tensorboard=false")
        wait_for_log(run)
        time.sleep(chance.random())
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, shown = process.communicate(timeout=300)  # against a hang
        seconds = time.monotonic() - began
        slowest = max(slowest, seconds)
        lost = read_records(run / "log.jsonl")[-1]["step"] + 1 - load_checkpoint(run).step
        if process.returncode != 75 or lost > 1:
            failures.append(
                f"{words[0]}: exit code {process.returncode}, {lost} steps lost, {seconds:.1f} s: {shown}"
            )
        elif read_record(run)["status"] != "interrupted":
            failures.append(f"{words[0]}: recorded as {read_record(run)['status']}")
    names = ", ".join(words[0] for words in TRAININGS[:count])
    return Outcome(count, failures, slowest, f"no logged step lost; trainings of {names}")


def wait_for_log(run: Path) -> None:
    end = time.monotonic() + 120
    while not (run / "log.jsonl").exists() or len(read_records(run / "log.jsonl")) < 2:
        if time.monotonic() > end:
            raise TimeoutError(f"{run} has logged nothing")
        time.sleep(0.02)

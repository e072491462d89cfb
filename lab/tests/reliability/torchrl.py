"""Advantage estimates and the PPO loss against torchrl: the tests that compare them, counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from reliability.outcome import Outcome
from reliability.training import ENVIRONMENT

TESTS = Path(__file__).parents[1] / "suite"
BATCHES = 1000  # in each of them


def measure(count: int, folder: Path) -> Outcome:
    """All of them, whatever the count; without torchrl they are skipped, which is a failure here."""
    files = sorted({*TESTS.glob("test_gae*.py"), *TESTS.glob("test_ppo*.py")})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "torchrl", *files],
        env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))},
        capture_output=True,
        text=True,
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    tests = int(passed.group(1)) if passed else 0
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "SKIPPED", "ERROR"))]
    if tests < 2 and not failures:
        failures = [f"two tests were expected to pass, got {tests}: {done.stdout[-500:]}"]
    return Outcome(BATCHES, failures, notes=f"in each of {tests} tests of {', '.join(f.name for f in files)}")

"""Short versions of every measurement, and with `make soak` the full ones, whose outcomes are kept."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reliability.catalogue import CATALOGUE
from reliability.outcome import Outcome
from reliability.publish import PAGE, page, write_csv
from reliability.training import ENVIRONMENT

pytestmark = pytest.mark.process
SHORT = [name for name, measurement in CATALOGUE.items() if measurement.short]


def measure(name: str, count: int, folder: Path) -> Outcome:
    measurement = CATALOGUE[name]
    if not measurement.alone:
        return measurement.measure(count, folder)
    paths = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    done = subprocess.run(
        [sys.executable, "-m", "reliability", name, str(count), str(folder)],
        env={**ENVIRONMENT, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", SHORT)
def test_short(name, tmp_path):
    outcome = measure(name, CATALOGUE[name].short, tmp_path)
    assert outcome.failures == []
    assert outcome.count > 0


@pytest.mark.soak
@pytest.mark.parametrize("name", CATALOGUE)
def test_full(name, tmp_path):
    if CATALOGUE[name].cuda and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    outcome = measure(name, CATALOGUE[name].full, tmp_path)
    write_csv(name, outcome)
    assert outcome.failures == []
    assert (outcome.worst_seconds or 0) <= CATALOGUE[name].limit


def test_the_page_shows_what_was_measured():
    assert page() == PAGE.read_text("utf-8"), "run: PYTHONPATH=lab/tests python -m reliability.publish"

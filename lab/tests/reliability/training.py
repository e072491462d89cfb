"""Trainings to be disturbed: an experiment's tiny preset, and a digest of everything that it leaves."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from dcem_lab import experiments
from dcem_lab.runs import Run, load_checkpoint, read_record, read_records
from dcem_lab.runs.tree import encode

TOY = "toy.experiment"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MUJOCO_GL": "disabled"}


def tiny(experiment: str, **changes: object) -> Any:
    """The config of the tiny preset, changed."""
    module = experiments.load(experiment)
    return replace(module.Config(**module.PRESETS["tiny"]), **changes)


def train(experiment: str, folder: Path, config: Any) -> None:
    """In this process, to the end or until it is disturbed."""
    with Run(folder, config, experiment=experiment, tensorboard=False, bar=False) as run:
        experiments.load(experiment).run(config, run)


def digest(folder: Path) -> str:
    """SHA-256 of the whole state at the end of a run, and of its log but for what a clock has said."""
    assert read_record(folder)["status"] == "finished"
    checkpoint = load_checkpoint(folder)
    encoded, tensors = encode(checkpoint.tree)
    rows = [
        {name: value for name, value in row.items() if not _is_time(name)}
        for row in read_records(folder / "log.jsonl")
    ]
    text = json.dumps([checkpoint.step, encoded, rows]).encode()
    parts = [tensors[name].contiguous().numpy().tobytes() for name in sorted(tensors)]
    return hashlib.sha256(text + b"".join(parts)).hexdigest()


def _is_time(name: str) -> bool:
    return name.startswith("ms/") or "seconds" in name or name.endswith("_per_s")


def dcem(*words: str, **options: Any) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    paths = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    return subprocess.Popen(
        [sys.executable, "-m", "dcem_lab", *words],
        env={**ENVIRONMENT, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )

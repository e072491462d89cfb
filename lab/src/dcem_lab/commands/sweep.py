"""Sweeps: many runs of one experiment, on any launcher, and how each ended."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import time
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcem_lab.commands.exits import DONE, FAILED, INTERRUPTED, UsageError
from dcem_lab.commands.launchers import Launcher, Slurm
from dcem_lab.commands.sweep_status import note_planned
from dcem_lab.runs import RunError, read_record
from dcem_lab.runs.config import to_json
from dcem_lab.runs.record import RECORD
from dcem_lab.terminal import printable

if TYPE_CHECKING:
    from dcem_lab.commands.train import Job


def sweep(job: Job, launcher: Launcher, configs: list[Any]) -> int:
    """Run every config through the launcher, list how they ended, and return the exit code."""
    if launcher.needs:
        importlib.import_module(launcher.needs)  # at once, before anything is written
    root = (job.options.run_dir or Path("runs", job.experiment)).resolve()
    job = dataclasses.replace(job, options=dataclasses.replace(job.options, run_dir=root))
    if isinstance(launcher, Slurm):  # a job's time begins when the cluster starts it
        job = dataclasses.replace(job, deadline=None)
    runs = {job.folder(config): config for config in configs}
    if len(runs) < len(configs):
        raise UsageError("the sweep asks for the same run more than once")
    failed = False
    try:
        note_planned(root, runs)
        left = [config for config in configs if not job.is_finished(config)]
        in_time = takewhile(lambda _: job.deadline is None or time.monotonic() < job.deadline, left)
        if left:
            launcher.launch(job.run, in_time, root / ".sweep", job.experiment)
    except KeyboardInterrupt:
        print("stopped waiting; jobs that a cluster has started continue", file=sys.stderr)
    except Exception as error:
        print(f"the launcher {job.options.launcher} failed: {error}", file=sys.stderr)
        failed = True
    statuses = _list(runs)
    if failed or "failed" in statuses:
        return FAILED
    return DONE if statuses == {"finished"} else INTERRUPTED


def _list(runs: dict[Path, Any]) -> set[str]:
    """Print a line per run (its folder and config); returns the statuses that occur."""
    statuses = set()
    for folder, config in runs.items():
        status, progress, error = _outcome(folder, config)
        statuses.add(status)
        print(f"{status:12} {progress:>15}  {folder}  {printable(error)}".rstrip())
    return statuses


def _outcome(folder: Path, config: Any) -> tuple[str, str, str]:
    """The status, progress and error of a run."""
    if not (folder / RECORD).exists():
        return "not started", "", ""
    try:
        record = read_record(folder)
    except RunError as error:
        return "failed", "", str(error)
    if record["config"] != to_json(config):
        return "failed", "", "the folder holds a run with other settings"
    progress = f"{record['step']}/{record['steps']}" if record["steps"] else ""
    return record["status"], progress, record["error"] or ""

"""Sweeps: many runs of one experiment, here, on all cores, or on a cluster, and what became of each."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcem_lab.commands.exits import DONE, FAILED, INTERRUPTED, UsageError
from dcem_lab.commands.overrides import Settings, launch
from dcem_lab.commands.sweep_status import note_planned
from dcem_lab.runs import RunError, read_record
from dcem_lab.runs.config import to_json
from dcem_lab.runs.record import RECORD
from dcem_lab.terminal import keep_streams, printable

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from dcem_lab.commands.train import Job

# Hydra's launchers, and the package that has each; its own runs one job after the other.
LAUNCHERS = {
    "basic": "hydra-core",
    "joblib": "hydra-joblib-launcher",
    "submitit_local": "hydra-submitit-launcher",
    "submitit_slurm": "hydra-submitit-launcher",
}

# Set in every process whose job was told to stop: the jobs that a launcher still hands to it are not begun.
_stopped = False


def sweep(job: Job, settings: Settings, configs: list[Any], words: list[str], launcher: list[str]) -> int:
    """Run every config through the launcher, list what became of them, and return the exit code."""
    global _stopped
    _stopped = False
    name, launcher = _launcher(launcher)
    settings.check_launcher(launcher)
    root = (job.options.run_dir or Path("runs", job.experiment)).resolve()
    job = dataclasses.replace(job, options=dataclasses.replace(job.options, run_dir=root))
    if name.startswith("submitit"):  # a job's time begins when the cluster starts it
        job = dataclasses.replace(job, deadline=None)
    runs = {job.folder(config, of_sweep=True): config for config in configs}
    if len(runs) < len(configs):
        raise UsageError("the sweep asks for the same run more than once")
    try:
        note_planned(root, runs)
        with _passing_stops_on() if name == "joblib" else nullcontext():
            launch(functools.partial(_run, job), words, launcher, root / ".sweep", job.experiment)
    except KeyboardInterrupt:
        print("stopped waiting; jobs that a cluster has started go on", file=sys.stderr)
    except Exception as error:
        print(f"the launcher {name} failed: {error}", file=sys.stderr)
        _list(runs)
        return FAILED
    statuses = _list(runs)
    if "failed" in statuses:
        return FAILED
    return DONE if statuses == {"finished"} else INTERRUPTED


def _run(job: Job, composed: DictConfig) -> None:
    """One job, in whichever process the launcher chose. Its status is in its folder, so it never raises."""
    global _stopped
    keep_streams()
    if not _stopped:
        config = Settings(job.base).from_hydra(composed)
        _stopped = job.run(config, of_sweep=True) == "interrupted"


def _launcher(words: Sequence[str]) -> tuple[str, list[str]]:
    """The launcher's name and the words for Hydra that choose it and set it up."""
    name = "basic"
    for word in words:
        key, _, value = word.partition("=")
        if key == "hydra/launcher":
            name = value
        elif not key.startswith("hydra.launcher.") or "_target_" in key:
            raise UsageError(f"{word} must be hydra/launcher=NAME or hydra.launcher.KEY=VALUE")
    if name not in LAUNCHERS:
        raise UsageError(f"hydra/launcher must be one of {', '.join(LAUNCHERS)}, got {name}")
    package = LAUNCHERS[name]
    if name != "basic" and importlib.util.find_spec(f"hydra_plugins.{package.replace('-', '_')}") is None:
        raise UsageError(f"hydra/launcher={name} needs a package: pip install {package}")
    chosen = list(words)
    if name == "submitit_slurm" and not any("max_num_timeout" in word for word in words):
        chosen.append("hydra.launcher.max_num_timeout=1000")  # a run that is out of time is queued again
    return name, chosen


def _list(runs: dict[Path, Any]) -> set[str]:
    """Print a line a run (its folder and config); returns the statuses that occur."""
    statuses = set()
    for folder, config in runs.items():
        status, progress, error = "not started", "", ""
        if (folder / RECORD).exists():
            status, progress, error = _outcome(folder, config)
        statuses.add(status)
        print(f"{status:12} {progress:>15}  {folder}  {printable(error)}".rstrip())
    return statuses


def _outcome(folder: Path, config: Any) -> tuple[str, str, str]:
    """The status, progress and error of a run that has begun."""
    try:
        record = read_record(folder)
    except RunError as error:
        return "failed", "", str(error)
    if record["config"] != to_json(config):
        return "failed", "", "the folder holds a run with other settings"
    progress = f"{record['step']}/{record['steps']}" if record["steps"] else ""
    return record["status"], progress, record["error"] or ""


@contextmanager
def _passing_stops_on() -> Iterator[None]:
    """SIGTERM and Ctrl-C go to the worker processes, which save and return; then the sweep ends by itself."""

    def handle(number: int, frame: object) -> None:
        print("stopping: the running jobs save their work", file=sys.stderr, flush=True)
        for children in Path("/proc/self/task").glob("*/children"):
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGTERM)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

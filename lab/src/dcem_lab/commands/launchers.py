"""Where the runs of a sweep are done: in this process, on all cores, or on a SLURM cluster."""

from __future__ import annotations

import dataclasses
import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

from dcem_lab.runs.settings import Settings, require, setting
from dcem_lab.terminal import keep_streams

Task = Callable[[Any], str]  # runs a config and returns how that ended; its folder says so, too

_MANY = 1000  # times that a run may be out of time and queued again


class Launcher(Settings):
    """Its fields are the words that set it up."""

    needs: ClassVar[str | None] = None  # a module that may not be installed

    def launch(self, task: Task, configs: Iterable[Any], folder: Path, name: str) -> None:
        """Give every config to the task. `folder` is for the launcher's own files, `name` for its jobs."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Local(Launcher):
    """One run after the other, in this process."""

    def launch(self, task: Task, configs: Iterable[Any], folder: Path, name: str) -> None:
        for config in configs:
            if task(config) == "interrupted":
                return


@dataclasses.dataclass(frozen=True)
class Joblib(Launcher):
    """Runs side by side, each in a process of its own, so that one that is killed takes no other with it.

    jobs: how many at once; null is one for every core.
    """

    needs = "joblib"
    jobs: int | None = setting(None, least=1)

    def launch(self, task: Task, configs: Iterable[Any], folder: Path, name: str) -> None:
        """Wait for all, also after a stop, which goes to every run; RuntimeError where some were killed."""
        from joblib import Parallel, delayed

        stopped = threading.Event()

        def stop(number: int, frame: object) -> None:
            print("stopping: the running jobs save their work", file=sys.stderr, flush=True)
            stopped.set()
            for process in multiprocessing.active_children():
                process.terminate()

        stops = (signal.SIGTERM, signal.SIGINT)
        previous = {number: signal.signal(number, stop) for number in stops}
        try:
            waiting = takewhile(lambda _: not stopped.is_set(), configs)
            pool = Parallel(self.jobs or -1, backend="threading", pre_dispatch="n_jobs")
            codes = pool(delayed(_in_own_process)(task, config, stopped) for config in waiting)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        lost = [str(code) for code in codes if code]
        if lost and not stopped.is_set():  # a stop may come before a run is ready for it
            raise RuntimeError(f"processes ended with exit codes {', '.join(lost)}")


@dataclasses.dataclass(frozen=True)
class Slurm(Launcher):
    """A job for every run, as one array.

    partition, account, qos, constraint: where jobs may run.
    timeout_min: minutes of a job; a run that needs more takes several jobs.
    gpus_per_node, cpus_per_task, mem_gb: what a job gets.
    array_parallelism: how many jobs at once.
    signal_delay_s: how many seconds before the end of its time limit a job gets SIGUSR2.
    sbatch: anything else that sbatch takes, as [exclusive,nice=10].
    """

    needs = "submitit"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    timeout_min: int = setting(60, least=1)
    gpus_per_node: int | None = setting(None, least=0)
    cpus_per_task: int | None = setting(None, least=1)
    mem_gb: float | None = setting(None, above=0)
    array_parallelism: int = setting(256, least=1)
    signal_delay_s: int = setting(120, least=1)
    sbatch: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        in_time = self.signal_delay_s < 60 * self.timeout_min
        require(in_time, "signal_delay_s", self.signal_delay_s, "less than timeout_min")

    def launch(self, task: Task, configs: Iterable[Any], folder: Path, name: str) -> None:
        """Submit, and wait for all; RuntimeError names the jobs that ended without a word."""
        from submitit import AutoExecutor

        executor = AutoExecutor(folder / "%j", cluster="slurm", slurm_max_num_timeout=_MANY)
        executor.update_parameters(name=name, tasks_per_node=1, **self._parameters())
        jobs = executor.map_array(_Requeued(task), list(configs))
        lost = [f"{job.job_id} ({job.state})" for job in jobs if job.exception() is not None]
        if lost:
            raise RuntimeError(f"jobs were lost: {', '.join(lost)}; their output is below {folder}")

    def _parameters(self) -> dict[str, Any]:
        """As submitit names them: with a prefix, unless every kind of cluster has them."""
        common = ("timeout_min", "gpus_per_node", "cpus_per_task", "mem_gb")
        values: dict[str, Any] = dataclasses.asdict(self)
        pairs = (word.partition("=") for word in values.pop("sbatch"))
        values["additional_parameters"] = {key: value if equals else True for key, equals, value in pairs}
        given = {key: value for key, value in values.items() if value not in (None, {})}
        return {key if key in common else f"slurm_{key}": value for key, value in given.items()}


class _Requeued:
    """A task that submitit queues again when its job is out of time."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __call__(self, config: Any) -> str:
        return self.task(config)

    def checkpoint(self, config: Any) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, config)


def _in_own_process(task: Task, config: Any, stopped: threading.Event) -> int | None:
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(task, config))
    process.start()
    if stopped.is_set():  # meanwhile, so that this one has not been told
        process.terminate()
    process.join()
    return process.exitcode


def _run(task: Task, config: Any) -> None:
    keep_streams()
    task(config)


LAUNCHERS: dict[str, type[Launcher]] = {"local": Local, "joblib": Joblib, "slurm": Slurm}

"""One run: a folder that says what ran, holds its log and checkpoints, and resumes where it stopped."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dcem_lab.runs.checkpoint import Checkpoint, CheckpointError, Checkpoints
from dcem_lab.runs.config import to_json
from dcem_lab.runs.log import JsonLines, TensorBoard
from dcem_lab.runs.progress import Progress
from dcem_lab.runs.record import RECORD, RunError, continued_record, write_record
from dcem_lab.runs.signals import Interrupted, StopRequests
from dcem_lab.runs.state import Restorable, capture, check_restorable, restore, seed_everything

LOG, CHECKPOINTS = "log.jsonl", "checkpoints"
_TENSORBOARD, _LOCK = "tensorboard", ".lock"


class Run:
    """A folder for one config and seed, entered while the experiment runs.

    Entering seeds every generator with `config.seed`, takes the folder for this process, and finds the newest
    checkpoint; leaving records how the run ended (finished, interrupted or failed) and its wall time.

        with Run(folder, config, experiment="regression") as run:
            for step in run.steps(config.updates, {"model": model, "optimizer": optimizer}):
                loss = update(model, optimizer)
                run.log(step, loss=loss)
    """

    step: int  # completed so far

    def __init__(
        self,
        folder: Path | str,
        config: Any,
        *,
        experiment: str = "",
        variant: str = "default",
        command: str = "",
        time_limit: float | None = None,
        tensorboard: bool = True,
        bar: bool | None = None,
    ) -> None:
        """`time_limit` saves and stops the run after so many seconds, as SIGTERM would.

        `experiment`, `variant` and `command` are recorded; `tensorboard` and `bar` say how to show metrics.
        """
        self.folder = Path(folder)
        self.config = config
        self._about = {"experiment": experiment, "variant": variant, "seed": config.seed, "command": command}
        self._label = "/".join(filter(None, [experiment, variant, f"seed{config.seed}"]))
        self._time_limit, self._with_tensorboard, self._bar = time_limit, tensorboard, bar
        self._stops = StopRequests()
        self._checkpoints = Checkpoints(self.folder / CHECKPOINTS)
        self._progress: Progress | None = None
        self._looped = False

    def __enter__(self) -> Run:
        seed_everything(self.config.seed)
        self.folder.mkdir(parents=True, exist_ok=True)
        _refuse_links(self.folder)
        _refuse_remains(self.folder)
        with ExitStack() as stack:
            stack.callback(os.close, _lock(self.folder))
            self._record = self._about | continued_record(self.folder, to_json(self.config))
            self._resumed: Checkpoint | None = self._checkpoints.load()
            self.step = self._resumed.step if self._resumed else 0
            self._start = time.monotonic()
            self._open_logs()
            self._write_record(status="running")
            stack.enter_context(self._stops)
            self._entered = stack.pop_all()
        return self

    def _open_logs(self) -> None:
        notes = self._resumed.notes if self._resumed else {}
        if not all(isinstance(value, int | float) and value >= 0 for value in notes.values()):
            raise RunError(f"the notes of a checkpoint in {self.folder} must be numbers, got {notes}")
        self._seconds_before = notes.get("seconds", 0.0)
        self._log_end = notes.get("log_end", 0)  # one past the last step logged
        try:
            self._log = JsonLines(self.folder / LOG, notes.get("log_bytes", 0))
        except ValueError as error:
            raise RunError(f"{error}; put the log back or delete {self.folder} to start again") from error
        self._tensorboard = TensorBoard(self.folder / _TENSORBOARD, self._log_end, self._with_tensorboard)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            self._close(error)
        except OSError:
            if error is None:  # otherwise report the first error, such as a full disk
                raise
        finally:
            self._entered.close()
        if isinstance(error, Interrupted):
            self._stops.pass_on()

    def _close(self, error: BaseException | None) -> None:
        if self._progress is not None:
            self._progress.close()
        self._log.close()
        self._tensorboard.close()
        if error is None:
            self._write_record(status="finished")
        elif isinstance(error, Interrupted | KeyboardInterrupt):
            self._write_record(status="interrupted")
        else:
            self._write_record(status="failed", error=f"{type(error).__name__}: {error}")

    @property
    def seconds(self) -> float:
        """Wall time of this run, with that of the sessions it resumes."""
        return self._seconds_before + time.monotonic() - self._start

    @property
    def should_stop(self) -> bool:
        """Whether a signal or the time limit requests a stop. `steps` checks it after every step."""
        over = self._time_limit is not None and time.monotonic() - self._start >= self._time_limit
        return over or self._stops.received is not None

    def steps(self, n: int, state: Mapping[str, Restorable], *, save_every: float = 60.0) -> Iterator[int]:
        """The loop of an experiment: `for step in run.steps(n, {"model": model, ...})`, from 0 to n-1.

        `state` names everything that changes from step to step: modules, optimisers, schedulers, generators,
        dicts of counters, anything with `state_dict` and `load_state_dict`. It is put back to where the run
        stopped before the first step, and saved every `save_every` seconds, at the end, and on a request to
        stop, which then leaves the experiment by raising Interrupted. The global random generators are part
        of it without being named, so that a resumed run continues bit for bit on the CPU.
        """
        if self._looped:
            raise RuntimeError("run.steps can be used once in a run: its checkpoints belong to one loop")
        self._looped = True
        check_restorable(state)
        self._restore(state)
        self._record["steps"] = n
        self._write_record()
        self._progress = Progress(n, done=self.step, label=self._label, bar=self._bar)
        saved, saved_at = self.step, time.monotonic()
        with self._stops.deferred():
            for step in range(self.step, n):
                yield step
                self.step = step + 1
                self._progress.advance()
                stop = self.should_stop
                due = self._stops.save_wanted or time.monotonic() - saved_at >= save_every
                if stop or due or self.step == n:
                    self._stops.save_wanted = False
                    self._save(state)
                    saved, saved_at = self.step, time.monotonic()
                if stop:
                    break
        self._progress.close()
        if self.should_stop:
            reason = self._stops.received.name if self._stops.received else "time limit"
            raise Interrupted(f"{reason}: saved at step {saved} of {n}")

    def log(self, step: int, **scalars: Any) -> None:
        """Record numbers (or tensors of one element) at a step: JSONL, TensorBoard, and the progress bar.

        The first few are shown beside the bar, so name what people watch first. Reading a GPU tensor waits
        for it: log every so many steps where that matters.
        """
        values = {name: _number(name, value) for name, value in scalars.items()}
        if self._progress is not None:
            self._progress.show(values)
        if self._resumed is not None:
            return  # before the loop has caught up, everything logged is in the file already
        self._log_end = max(self._log_end, step + 1)
        self._log.write({"step": step, "seconds": round(self.seconds, 3), **values})
        self._tensorboard.write(step, values)

    def _restore(self, state: Mapping[str, Restorable]) -> None:
        checkpoint, self._resumed = self._resumed, None
        if checkpoint is None:
            return
        try:
            restore(state, checkpoint.tree)
        except (LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise RunError(
                f"the checkpoint of step {checkpoint.step} in {self.folder} does not fit this program "
                f"({error}); delete the folder to start again"
            ) from error

    def _save(self, state: Mapping[str, Restorable]) -> None:
        notes = {"log_bytes": self._log.position(), "log_end": self._log_end, "seconds": self.seconds}
        self._checkpoints.save(self.step, capture(state), notes)
        self._write_record()

    def _write_record(self, **changes: object) -> None:
        self._record |= {"step": self.step, "wall_seconds": round(self.seconds, 3), **changes}
        write_record(self.folder, self._record)


def load_checkpoint(folder: Path | str) -> Checkpoint:
    """The newest good checkpoint of a run folder, for evaluation: nothing is changed, no lock is taken."""
    checkpoint = Checkpoints(Path(folder) / CHECKPOINTS).load()
    if checkpoint is None:
        raise CheckpointError(f"{folder} has no checkpoint yet")
    return checkpoint


def _refuse_links(folder: Path) -> None:
    """A run writes and truncates its files: in a folder from elsewhere, a symlink could redirect this."""
    for name in (RECORD, LOG, CHECKPOINTS, _TENSORBOARD, _LOCK):
        if (folder / name).is_symlink():
            raise RunError(f"{folder / name} must not be a link; link the whole run folder instead")
        if (folder / name).is_fifo():
            raise RunError(f"{folder / name} must not be a pipe: opening it would wait for its other end")


def _refuse_remains(folder: Path) -> None:
    """Nothing is logged or saved before the record is: a log or a checkpoint without it is someone else's."""
    if (folder / RECORD).exists():
        return
    for path in (folder / LOG, *(folder / CHECKPOINTS).glob("step*")):
        if path.exists() and path.stat().st_size:
            raise RunError(
                f"{folder} has {path.relative_to(folder)} and no {RECORD} that says of which run; "
                "choose another run_dir, or put the record back"
            )


def _lock(folder: Path) -> int:
    """A lock that the kernel releases when the process ends, in any way."""
    descriptor = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise RunError(f"another process is running in {folder}") from None
    return descriptor


def _number(name: str, value: Any) -> float:
    try:
        number = value.item() if hasattr(value, "item") else value
        return number if type(number) is int else float(number)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be a number or a tensor of one element, got {value!r}") from error

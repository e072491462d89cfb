"""Worker processes that run environments and share arrays with the caller.

Actions, observations, rewards and episode ends are in shared memory. A step sends only its name through each
worker's pipe, which also tells either side when the other has died.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict
from gymnasium.vector.utils import read_from_shared_memory

Factory = Callable[[], gymnasium.Env]
Arrays = Any
"""By name, with a row for each environment; Gymnasium's functions that make them are typed for any space."""
Shared = tuple[Dict, Any, int]
"""The space of one row, the memory of all rows, and how many there are."""

_SECONDS_TO_STOP = 5.0


def row_space(observation: Box, action: Box) -> Dict:
    """What the caller and the workers share of each environment; ``steps`` since its reset."""
    return Dict(
        observations=observation,
        actions=action,
        rewards=Box(-np.inf, np.inf, (), np.float64),
        terminated=Box(0, 1, (), np.bool_),
        truncated=Box(0, 1, (), np.bool_),
        steps=Box(0, np.iinfo(np.int64).max, (), np.int64),
    )


class Group:
    """Some of the environments and their rows of the arrays: the same code with and without workers.

    Used as a worker in this process, the work is done by the time ``start`` returns.
    """

    def __init__(self, factory: Factory, rows: range, arrays: Arrays) -> None:
        self._arrays = arrays
        self._envs: dict[int, Any] = {row: factory() for row in rows}
        self._result: Any = None

    def start(self, method: str, args: tuple[Any, ...]) -> None:
        self._result = getattr(self, method)(*args)

    def finish(self) -> Any:
        return self._result

    def reset(self, mask: np.ndarray, seeds: Sequence[int | None]) -> None:
        for row in self._envs:
            if mask[row]:
                self._arrays["steps"][row] = 0
                self._write(row, self._guarded(row, "reset", seed=seeds[row])[0])

    def step(self) -> None:
        arrays = self._arrays
        for row in self._envs:
            arrays["steps"][row] += 1
            observation, reward, terminated, truncated, _ = self._guarded(
                row, "step", arrays["actions"][row].copy()
            )
            self._write(row, observation, float(reward))
            arrays["terminated"][row], arrays["truncated"][row] = terminated, truncated

    def get_state(self) -> dict[str, Any]:
        return {str(row): self._guarded(row, "get_state") for row in self._envs}

    def set_state(self, states: dict[str, Any]) -> None:
        for row in self._envs:
            self._guarded(row, "set_state", states[str(row)])

    def hang_up(self) -> None:
        for env in self._envs.values():
            env.close()

    def join(self) -> None:
        pass

    def _guarded(self, row: int, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self._envs[row], method)(*args, **kwargs)
        except Exception as error:
            raise RuntimeError(
                f"environment {row} failed in {method} {self._when(row)}: {error!r}"
            ) from error

    def _write(self, row: int, observation: np.ndarray, reward: float = 0.0) -> None:
        if not math.isfinite(reward):
            raise RuntimeError(f"environment {row} gave a reward of {reward} {self._when(row)}.")
        if not np.isfinite(observation).all():
            raise RuntimeError(f"environment {row} gave a non-finite observation {self._when(row)}.")
        self._arrays["observations"][row] = observation
        self._arrays["rewards"][row] = reward

    def _when(self, row: int) -> str:
        return f"at step {self._arrays['steps'][row]} of its episode"


class RemoteWorker:
    """Runs a group in another process: ``start`` sends a command, ``finish`` waits for its result."""

    def __init__(self, context: ForkServerContext, factory: Factory, rows: range, shared: Shared) -> None:
        self._rows = rows
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, factory, rows, shared), daemon=True)
        self._process.start()
        theirs.close()

    def start(self, method: str, args: tuple[Any, ...]) -> None:
        with contextlib.suppress(OSError):  # a dead worker is reported by finish
            self._pipe.send((method, args))

    def finish(self) -> Any:
        try:
            error, result = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(_SECONDS_TO_STOP)
            raise RuntimeError(
                f"the worker process of environments {self._rows[0]} to {self._rows[-1]} died "
                f"(exit code {self._process.exitcode})."
            ) from None
        if error is not None:
            raise RuntimeError(error)
        return result

    def hang_up(self) -> None:
        self._pipe.close()

    def join(self) -> None:
        self._process.join(_SECONDS_TO_STOP)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


def serve(pipe: Connection, factory: Factory, rows: range, shared: Shared) -> None:
    """The main loop of a worker: make the environments, then run commands until the caller is gone."""
    # Ignore signals sent to the whole process group: the caller handles them, and may want to save first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        group = Group(factory, rows, read_from_shared_memory(*shared))
    except Exception as error:
        pipe.send((_report(error), None))
        return
    pipe.send((None, None))
    with contextlib.suppress(EOFError, OSError):
        while True:
            method, args = pipe.recv()
            try:
                result, failure = getattr(group, method)(*args), None
            except Exception as error:
                result, failure = None, _report(error)
            pipe.send((failure, result))
    group.hang_up()


def _report(error: Exception) -> str:
    return f"{error}\n\nIn the worker:\n{''.join(traceback.format_exception(error))}"


def stop(workers: list[Group | RemoteWorker]) -> None:
    """End all workers, together."""
    for worker in workers:
        worker.hang_up()
    for worker in workers:
        worker.join()
    workers.clear()


@contextlib.contextmanager
def worker_variables() -> Iterator[None]:
    """The environment variables the workers start with: no rendering, and no threads of their own."""
    before = dict(os.environ)
    changed = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    changed["MUJOCO_GL"] = before.get("MUJOCO_GL", "disabled")
    os.environ.update(changed)
    try:
        yield
    finally:
        for name in changed:
            del os.environ[name]
            if name in before:
                os.environ[name] = before[name]

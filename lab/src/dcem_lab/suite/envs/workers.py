"""Worker processes that run environments and share arrays with the caller.

Nothing is pickled in the loop: actions, observations, rewards and episode ends are in shared memory. A step
sends a few bytes through each worker's pipe, which also tells either side when the other has died.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

Factory = Callable[[], gymnasium.Env]
Memory = Mapping[str, Any]

_SECONDS_TO_STOP = 5.0
_DONE = b""


@dataclass(frozen=True)
class Arrays:
    """Arrays shared by the caller and the workers, a row per environment; ``steps`` since its reset."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    steps: np.ndarray

    @classmethod
    def zeros(cls, n_envs: int, observation: Box, action: Box) -> Arrays:
        return cls(
            observations=np.zeros((n_envs, *observation.shape), observation.dtype),
            actions=np.zeros((n_envs, *action.shape), action.dtype),
            rewards=np.zeros(n_envs, np.float64),
            terminated=np.zeros(n_envs, bool),
            truncated=np.zeros(n_envs, bool),
            steps=np.zeros(n_envs, np.int64),
        )

    def over(self, memory: Memory) -> Arrays:
        """Arrays of the same shapes and types in shared memory."""
        views = {
            name: np.frombuffer(memory[name], x.dtype).reshape(x.shape) for name, x in vars(self).items()
        }
        return Arrays(**views)


class Group:
    """Some of the environments and their rows of the arrays: the same code with and without workers."""

    def __init__(self, factory: Factory, rows: range, arrays: Arrays) -> None:
        self._rows, self._arrays = rows, arrays
        self._envs: list[Any] = [factory() for _ in rows]

    def reset(self, mask: np.ndarray, seeds: Sequence[int | None]) -> None:
        for row, env in zip(self._rows, self._envs, strict=True):
            if mask[row]:
                self._arrays.steps[row] = 0
                self._write(row, self._guarded(row, env, "reset", seed=seeds[row])[0])

    def step(self) -> None:
        arrays = self._arrays
        for row, env in zip(self._rows, self._envs, strict=True):
            arrays.steps[row] += 1
            observation, reward, terminated, truncated, _ = self._guarded(
                row, env, "step", arrays.actions[row].copy()
            )
            self._write(row, observation, float(reward))
            arrays.terminated[row], arrays.truncated[row] = terminated, truncated

    def get_state(self) -> dict[str, Any]:
        pairs = zip(self._rows, self._envs, strict=True)
        return {str(row): self._guarded(row, env, "get_state") for row, env in pairs}

    def set_state(self, states: dict[str, Any]) -> None:
        for row, env in zip(self._rows, self._envs, strict=True):
            self._guarded(row, env, "set_state", states[str(row)])

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _guarded(self, row: int, env: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(env, method)(*args, **kwargs)
        except Exception as error:
            raise RuntimeError(
                f"environment {row} failed in {method} {self._when(row)}: {error!r}"
            ) from error

    def _write(self, row: int, observation: np.ndarray, reward: float = 0.0) -> None:
        if not math.isfinite(reward):
            raise RuntimeError(f"environment {row} gave a reward of {reward} {self._when(row)}.")
        if not np.isfinite(observation).all():
            raise RuntimeError(f"environment {row} gave a non-finite observation {self._when(row)}.")
        self._arrays.observations[row] = observation
        self._arrays.rewards[row] = reward

    def _when(self, row: int) -> str:
        return f"at step {self._arrays.steps[row]} of its episode"


class LocalWorker:
    """Runs a group in this process: the work is done by the time ``start`` returns."""

    def __init__(self, factory: Factory, rows: range, arrays: Arrays) -> None:
        self._group = Group(factory, rows, arrays)
        self._result: Any = None

    def start(self, method: str, args: tuple[Any, ...]) -> None:
        self._result = getattr(self._group, method)(*args)

    def finish(self) -> Any:
        return self._result

    def hang_up(self) -> None:
        self._group.close()

    def join(self) -> None:
        pass


class RemoteWorker:
    """Runs a group in another process: ``start`` sends a command, ``finish`` waits for its result."""

    def __init__(
        self, context: ForkServerContext, factory: Factory, rows: range, arrays: Arrays, memory: Memory
    ) -> None:
        self._rows = rows
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, factory, rows, arrays, memory), daemon=True
        )
        self._process.start()
        theirs.close()
        self._has_result = False

    def start(self, method: str, args: tuple[Any, ...]) -> None:
        self._has_result = method != "step"
        with contextlib.suppress(OSError):  # a dead worker is reported by finish
            self._pipe.send_bytes(method.encode())
            if self._has_result:
                self._pipe.send(args)

    def finish(self) -> Any:
        try:
            error = self._pipe.recv_bytes()
            if error == _DONE:
                return self._pipe.recv() if self._has_result else None
        except (EOFError, OSError):
            self._process.join(_SECONDS_TO_STOP)
            raise RuntimeError(
                f"the worker process of environments {self._rows[0]} to {self._rows[-1]} died "
                f"(exit code {self._process.exitcode})."
            ) from None
        raise RuntimeError(error.decode())

    def hang_up(self) -> None:
        self._pipe.close()

    def join(self) -> None:
        self._process.join(_SECONDS_TO_STOP)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


def serve(pipe: Connection, factory: Factory, rows: range, arrays: Arrays, memory: Memory) -> None:
    """The main loop of a worker: make the environments, then run commands until the caller is gone."""
    # Ignore signals sent to the whole process group: the caller handles them, and may want to save first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        group = Group(factory, rows, arrays.over(memory))
    except Exception as error:
        pipe.send_bytes(_report(error))
        return
    pipe.send_bytes(_DONE)
    with contextlib.suppress(EOFError, OSError):
        while True:
            method = pipe.recv_bytes().decode()
            args = () if method == "step" else pipe.recv()
            try:
                result = getattr(group, method)(*args)
            except Exception as error:
                pipe.send_bytes(_report(error))
                continue
            pipe.send_bytes(_DONE)
            if method != "step":
                pipe.send(result)
    group.close()


def _report(error: Exception) -> bytes:
    return f"{error}\n\nIn the worker:\n{''.join(traceback.format_exception(error))}".encode()


def stop(workers: list[LocalWorker | RemoteWorker]) -> None:
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

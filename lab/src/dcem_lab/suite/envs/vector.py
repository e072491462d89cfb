"""Many environments stepped at once: a Gymnasium vector environment over worker processes."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import weakref
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv, utils

from dcem_lab.suite.envs import workers

# The worker processes are copies of one that has imported these: sixteen start as fast as one.
_PRELOADED = ["__main__", "dcem_lab.suite.envs.dmc", "dm_control.suite"]


class ParallelEnv(VectorEnv):
    """``n_envs`` environments made by ``factory``, in ``n_workers`` processes (0: in this one).

    The numbers do not depend on ``n_workers``. Episodes are never restarted behind the caller's back
    (``AutoresetMode.DISABLED``): the step that ends one returns its final observation with ``terminated``
    or ``truncated`` set, and that environment must be reset before the next step::

        ended = terminated | truncated
        if ended.any():
            observations, _ = envs.reset(options={"reset_mask": ended})

    A reset with ``seed=s`` seeds environment i with s + i. Infos are not collected. With workers the
    factory must be picklable, as ``functools.partial(make_env, "cheetah-run")`` is.

    >>> from functools import partial
    >>> from dcem_lab.suite.envs.dmc import make_env
    >>> envs = ParallelEnv(partial(make_env, "Pendulum-v1"), n_envs=3)
    >>> observations, _ = envs.reset(seed=0)
    >>> observations, rewards, terminated, truncated, _ = envs.step(np.zeros((3, 1)))
    >>> observations.shape, rewards.shape
    ((3, 3), (3,))
    >>> envs.close()
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012 (the name and type are Gymnasium's)

    def __init__(self, factory: workers.Factory, n_envs: int, n_workers: int = 0) -> None:
        if n_envs < 1:
            raise ValueError(f"n_envs must be at least 1, got {n_envs}.")
        if not 0 <= n_workers <= n_envs:
            raise ValueError(f"n_workers must be between 0 and n_envs={n_envs}, got {n_workers}.")
        with contextlib.closing(factory()) as probe:
            observation = _box(probe.observation_space, "an observation")
            action = _box(probe.action_space, "an action")
            self.terminates = getattr(probe, "terminates", True)
            """Whether episodes may end before the time limit."""
        self.num_envs = n_envs
        self.single_observation_space, self.single_action_space = observation, action
        self.observation_space = utils.batch_space(observation, n_envs)
        self.action_space = utils.batch_space(action, n_envs)
        self._running = np.zeros(n_envs, bool)
        self._workers: list[workers.Group | workers.RemoteWorker] = []
        self._stop = weakref.finalize(self, workers.stop, self._workers)
        # Registered after multiprocessing's own exit hook, hence run before it: that one waits for
        # the workers, which wait for their pipes to close.
        atexit.register(self._stop)

        row = workers.row_space(observation, action)
        if n_workers == 0:
            self._arrays: workers.Arrays = utils.create_empty_array(row, n_envs, np.zeros)
            self._workers.append(workers.Group(factory, range(n_envs), self._arrays))
            return
        context: Any = multiprocessing.get_context("forkserver")  # a fork of one that uses CUDA breaks
        context.set_forkserver_preload(_PRELOADED)
        shared = row, utils.create_shared_memory(row, n_envs, context), n_envs
        self._arrays = utils.read_from_shared_memory(*shared)
        with workers.worker_variables():
            for rows in np.array_split(np.arange(n_envs), n_workers):
                span = range(int(rows[0]), int(rows[-1]) + 1)
                self._workers.append(workers.RemoteWorker(context, factory, span, shared))
        try:
            self._finish()
        except RuntimeError:
            self.close()
            raise

    @property
    def observations(self) -> np.ndarray:
        """The latest observation of every environment, (n_envs, ...)."""
        return self._arrays["observations"].copy()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start episodes, in all environments or where ``options["reset_mask"]`` (n_envs,) is true."""
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        if mask.shape != (self.num_envs,) or mask.dtype != bool:
            raise ValueError(
                f"options['reset_mask'] must be ({self.num_envs},) of bool, got {mask.shape} of {mask.dtype}."
            )
        if seed is None or isinstance(seed, int):
            seed = [None if seed is None else seed + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"seed must have one entry for each of {self.num_envs}, got {len(seed)}.")
        self._call("reset", mask, seed)
        self._running |= mask
        return self.observations, {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step every environment with its row of ``actions`` (n_envs, m)."""
        actions = np.asarray(actions)
        if actions.shape != self.action_space.shape:
            raise ValueError(f"actions must have shape {self.action_space.shape}, got {actions.shape}.")
        if not np.isfinite(actions).all():
            row = int(np.argwhere(~np.isfinite(actions))[0, 0])
            raise ValueError(f"actions must be finite, got {actions[row]} for environment {row}.")
        if not self._running.all():
            idle = np.flatnonzero(~self._running).tolist()
            raise RuntimeError(f"step needs a running episode everywhere: reset environments {idle} first.")
        self._arrays["actions"][:] = actions
        self._call("step")
        names = ("observations", "rewards", "terminated", "truncated")
        observations, rewards, terminated, truncated = (self._arrays[name].copy() for name in names)
        self._running = ~(terminated | truncated)
        return observations, rewards, terminated, truncated, {}

    def get_state(self) -> dict[str, Any]:
        """Everything the next steps depend on: nested dicts of arrays and JSON values.

        The state does not depend on ``n_workers``. Environments need ``get_state`` and ``set_state``.
        """
        envs = {row: state for part in self._call("get_state") for row, state in part.items()}
        return {
            "observations": self.observations,
            "steps": self._arrays["steps"].copy(),
            "running": self._running.copy(),
            "envs": envs,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`get_state`, bit for bit."""
        if len(state["envs"]) != self.num_envs:
            raise ValueError(f"state must hold {self.num_envs} environments, got {len(state['envs'])}.")
        self._call("set_state", state["envs"])
        for name in ("observations", "steps"):
            self._arrays[name][:] = state[name]
        self._running = np.array(state["running"], bool)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments and end the workers."""
        self._stop()
        atexit.unregister(self._stop)

    def _call(self, method: str, *args: Any) -> list[Any]:
        if not self._workers:
            raise RuntimeError(f"{method} needs open environments, but this ParallelEnv is closed.")
        for worker in self._workers:
            worker.start(method, args)
        return self._finish()

    def _finish(self) -> list[Any]:
        # Every answer is read before the first error is raised, so that the pipes stay in step.
        results, errors = [], []
        for worker in self._workers:
            try:
                results.append(worker.finish())
            except RuntimeError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return results


def _box(space: gymnasium.Space, what: str) -> Box:
    if not isinstance(space, Box):
        raise ValueError(f"factory must make environments with {what} space that is a Box, got {space}.")
    return space

"""Control tasks of the DeepMind control suite and of Gymnasium, behind one interface.

:func:`make_env` turns a name into a :class:`ControlEnv`: a :class:`gymnasium.Env` with flat float32
observations, actions in [-1, 1], rewards summed over the action repeat, seeded resets, and
``get_state``/``set_state`` after which an episode continues bit for bit.
"""

from __future__ import annotations

import difflib
import logging
import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, flatdim, flatten

ACTION_REPEATS = {"cheetah": 4, "walker": 2}
"""Environment steps an action is held for, by domain of the suite, as in PlaNet; other domains: 2."""

EPISODE_STEPS = 1000  # environment steps of an episode, in every task of the suite

NEVER_TERMINATE = ("HalfCheetah", "HumanoidStandup", "Pendulum", "Pusher", "Reacher", "Swimmer")
"""Gymnasium tasks that only end by a time limit. For others Gymnasium does not say, so they may terminate."""


class ControlEnv(gymnasium.Env[np.ndarray, np.ndarray], ABC):
    """A continuous-control task that repeats actions and can be saved in the middle of an episode.

    A subclass gives one environment step (``_advance``), an observation, a reset and its own state;
    this class counts environment steps, ends the episode at the time limit (``truncated``, since
    the task itself goes on) and maps actions from [-1, 1] to the task's bounds.
    """

    def __init__(
        self,
        name: str,
        action_repeat: int,
        episode_steps: int | None,
        n_observations: int,
        action_low: np.ndarray,
        action_high: np.ndarray,
        terminates: bool,
    ) -> None:
        if action_repeat < 1:
            raise ValueError(f"action_repeat must be at least 1, got {action_repeat}.")
        low, high = np.asarray(action_low, np.float64), np.asarray(action_high, np.float64)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ValueError(f"task must have bounded actions, got {name!r} with bounds {low} and {high}.")
        self.name, self.action_repeat, self.episode_steps = name, action_repeat, episode_steps
        self.terminates = terminates  # whether the task may end an episode before the time limit
        self.observation_space = Box(-np.inf, np.inf, (n_observations,), np.float32)
        self.action_space = Box(-1.0, 1.0, low.shape, np.float32)
        self._center, self._radius = (high + low) / 2, (high - low) / 2
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; a seed restarts the task's random numbers, no seed continues them."""
        self._steps = 0
        self._restart(seed)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Hold ``action`` (m,), clipped to [-1, 1], for the action repeat and sum the rewards."""
        control = self.control(action)
        total, terminated, truncated = 0.0, False, False
        for _ in range(self.action_repeat):
            reward, terminated = self._advance(control)
            total += reward
            self._steps += 1
            truncated = self._steps == self.episode_steps and not terminated
            if terminated or truncated:
                break
        return self._observe(), total, terminated, truncated, {}

    def control(self, action: np.ndarray) -> np.ndarray:
        """``action`` (..., m), clipped to [-1, 1], in the units of the task."""
        return self._center + self._radius * np.clip(action, -1.0, 1.0)

    @property
    def episode_actions(self) -> int | None:
        """Actions until the time limit; None without one."""
        return None if self.episode_steps is None else math.ceil(self.episode_steps / self.action_repeat)

    def get_state(self) -> dict[str, Any]:
        """All the rest of the episode and later ones depend on: nested dicts of arrays and JSON values."""
        return {"name": self.name, "steps": self._steps, **self._get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue bit for bit from a :meth:`get_state` of another environment of the same task."""
        if state["name"] != self.name:
            raise ValueError(f"state must be one of {self.name!r}, got one of {state['name']!r}.")
        # A reset builds whatever a task makes on its first episode; the state then replaces all of it.
        self._restart(None)
        self._set_state(state)
        self._steps = int(state["steps"])

    @abstractmethod
    def _restart(self, seed: int | None) -> None: ...

    @abstractmethod
    def _advance(self, control: np.ndarray) -> tuple[float, bool]: ...

    @abstractmethod
    def _observe(self) -> np.ndarray: ...

    @abstractmethod
    def _get_state(self) -> dict[str, Any]: ...

    @abstractmethod
    def _set_state(self, state: dict[str, Any]) -> None: ...


class DMCEnv(ControlEnv):
    """A task of the DeepMind control suite, ended only by its time limit (lqr also at its goal)."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (the name and the type are Gymnasium's)
    render_mode = "rgb_array"

    def __init__(self, task: str, action_repeat: int | None = None) -> None:
        suite = _control_suite()
        domain, _, task_name = task.partition("-")
        if (domain, task_name) not in suite.ALL_TASKS:
            known = ["-".join(names) for names in suite.ALL_TASKS]
            closest = difflib.get_close_matches(task, known, n=3, cutoff=0.0)
            raise ValueError(
                f"task must be a task of the control suite or a Gymnasium id such as 'Pendulum-v1', "
                f"got {task!r}; the closest tasks are {', '.join(closest)}."
            )
        # One fixed generator builds the model (lqr draws its springs), so that a state fits any seed.
        self._suite = suite.load(domain, task_name, task_kwargs={"random": np.random.RandomState(0)})
        self._task, self.physics = self._suite.task, self._suite.physics
        self._task.random.seed()
        self._substeps = round(self._suite.control_timestep() / self.physics.timestep())
        self._model_as_built = {name: x.copy() for name, x in _arrays(self.physics.model.ptr).items()}
        bounds = self._suite.action_spec()
        super().__init__(
            task,
            ACTION_REPEATS.get(domain, 2) if action_repeat is None else action_repeat,
            EPISODE_STEPS,
            sum(int(np.prod(spec.shape)) for spec in self._suite.observation_spec().values()),
            bounds.minimum,
            bounds.maximum,
            terminates=domain == "lqr",
        )

    def render(self) -> np.ndarray:
        """The scene as its first camera sees it: (240, 320, 3) bytes."""
        return self.physics.render(height=240, width=320, camera_id=0)

    def _restart(self, seed: int | None) -> None:
        if seed is not None:
            self._task.random.seed(seed)
        self._suite.reset()

    def _advance(self, control: np.ndarray) -> tuple[float, bool]:
        # The suite's own step without the observation, which only the last repeat needs.
        self._task.before_step(control, self.physics)
        self.physics.step(self._substeps)
        self._task.after_step(self.physics)
        return self._task.get_reward(self.physics), self._task.get_termination(self.physics) is not None

    def _observe(self) -> np.ndarray:
        parts = self._task.get_observation(self.physics).values()
        return np.concatenate([np.ravel(part) for part in parts]).astype(np.float32)

    def _get_state(self) -> dict[str, Any]:
        model = _arrays(self.physics.model.ptr)
        changed = [name for name, x in self._model_as_built.items() if not np.array_equal(model[name], x)]
        return {
            "physics": _physics_state(self.physics.model.ptr, self.physics.data.ptr),
            "model": {name: model[name].copy() for name in changed},  # reacher and others move their targets
            "random": self._task.random.get_state(legacy=False),
        }

    def _set_state(self, state: dict[str, Any]) -> None:
        model = _arrays(self.physics.model.ptr)
        for name, as_built in self._model_as_built.items():
            model[name][...] = state["model"].get(name, as_built)
        _set_physics_state(self.physics.model.ptr, self.physics.data.ptr, state["physics"])
        self._task.random.set_state(state["random"])


class GymnasiumEnv(ControlEnv):
    """A Gymnasium task with continuous actions, its time limit counted here.

    ``get_state`` knows the classic-control and MuJoCo families, and any environment that has
    ``get_state`` and ``set_state`` of its own (nested dicts of arrays and JSON values).
    """

    def __init__(self, task: str, action_repeat: int = 1, render_mode: str | None = None) -> None:
        rendering = {} if render_mode is None else {"render_mode": render_mode}
        # Counting the time limit here makes it part of the state without reaching into wrappers.
        try:
            self._env = gymnasium.make(task, max_episode_steps=-1, disable_env_checker=True, **rendering)
        except gymnasium.error.Error as error:
            raise ValueError(f"task must be a known Gymnasium id, got {task!r}: {error}") from error
        actions = self._env.action_space
        if not isinstance(actions, Box):
            raise ValueError(f"task must have continuous (Box) actions, got {task!r} with {actions}.")
        self._action_shape, self.render_mode = actions.shape, render_mode
        self._observation = np.zeros(0, np.float32)
        super().__init__(
            task,
            action_repeat,
            gymnasium.spec(task).max_episode_steps,
            flatdim(self._env.observation_space),
            actions.low.ravel(),
            actions.high.ravel(),
            terminates=task.rpartition("-v")[0] not in NEVER_TERMINATE,
        )

    def render(self) -> Any:
        """A frame, when the environment was made with a ``render_mode``."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment and its windows."""
        self._env.close()

    def _restart(self, seed: int | None) -> None:
        self._flatten(self._env.reset(seed=seed)[0])

    def _advance(self, control: np.ndarray) -> tuple[float, bool]:
        action = control.reshape(self._action_shape).astype(self._env.action_space.dtype)
        observation, reward, terminated, _, _ = self._env.step(action)
        self._flatten(observation)
        return float(reward), bool(terminated)

    def _flatten(self, observation: Any) -> None:
        self._observation = np.asarray(flatten(self._env.observation_space, observation), np.float32)

    def _observe(self) -> np.ndarray:
        return self._observation

    def _get_state(self) -> dict[str, Any]:
        env: Any = self._env.unwrapped
        state: dict[str, Any] = {"random": env.np_random.bit_generator.state}
        if type(env).__module__.startswith("gymnasium.envs.classic_control."):
            return {**state, "state": np.array(env.state)}
        if type(env).__module__.startswith("gymnasium.envs.mujoco."):
            derived = {name: x.copy() for name, x in _arrays(env.data).items()}
            return {**state, "physics": _physics_state(env.model, env.data), "derived": derived}
        if hasattr(env, "get_state") and hasattr(env, "set_state"):
            return {**state, "own": env.get_state()}
        raise NotImplementedError(
            f"get_state needs a classic-control or MuJoCo task, or one with get_state and set_state "
            f"of its own, got {self.name!r} ({type(env).__name__})."
        )

    def _set_state(self, state: dict[str, Any]) -> None:
        env: Any = self._env.unwrapped
        env.np_random.bit_generator.state = state["random"]
        if "state" in state:
            env.state = np.array(state["state"])
        elif "physics" in state:
            _set_physics_state(env.model, env.data, state["physics"])
            # These tasks read positions that MuJoCo leaves one substep behind; mj_forward renewed them. What
            # has another size belongs to contacts, which the next step finds again.
            for name, now in _arrays(env.data).items():
                saved = state["derived"].get(name)
                if saved is not None and now.shape == saved.shape:
                    now[...] = saved
        else:
            env.set_state(state["own"])


def make_env(task: str, action_repeat: int | None = None, render_mode: str | None = None) -> ControlEnv:
    """The task of that name: ``cheetah-run`` of the control suite, ``Pendulum-v1`` of Gymnasium.

    Actions repeat as in :data:`ACTION_REPEATS` for the suite and not at all for Gymnasium, unless
    ``action_repeat`` says otherwise. ``render_mode`` is for Gymnasium; the suite always renders.

    >>> env = make_env("cheetah-run")
    >>> observation, _ = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    >>> env.action_repeat, observation.shape, terminated, truncated
    (4, (17,), False, False)
    """
    if re.search(r"-v\d+$", task):
        return GymnasiumEnv(task, 1 if action_repeat is None else action_repeat, render_mode)
    return DMCEnv(task, action_repeat)


def probe(make: Callable[[], ControlEnv]) -> ControlEnv:
    """An environment that is closed already, for what it says about its task."""
    with closing(make()) as env:
        return env


def _control_suite() -> Any:
    """``dm_control.suite``, imported late (it takes a second) and with a renderer that can work."""
    with warnings.catch_warnings():
        import glfw

        # Without a display GLFW only warns; dm_control would choose it and fail to render. As an
        # error it makes dm_control try EGL next.
        warnings.simplefilter("error", glfw.GLFWError)
        from dm_control import suite
    # MuJoCo has warnings about the suite's own models, on every load.
    logging.getLogger("absl").setLevel(logging.ERROR)
    return suite


def _arrays(struct: Any) -> dict[str, np.ndarray]:
    """Views of every numeric array of an ``MjModel`` or ``MjData``, by name."""
    fields = ((name, getattr(struct, name)) for name in dir(struct) if not name.startswith("_"))
    return {name: x for name, x in fields if isinstance(x, np.ndarray) and x.size}


def _physics_state(model: Any, data: Any) -> np.ndarray:
    """The full integration state of a MuJoCo simulation, (n,) float64."""
    import mujoco

    state = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    return state


def _set_physics_state(model: Any, data: Any, state: np.ndarray) -> None:
    """Put a simulation exactly where :func:`_physics_state` found it."""
    import mujoco

    size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION)
    if state.shape != (size,):
        raise ValueError(f"state['physics'] must have shape ({size},), got {state.shape}.")
    mujoco.mj_setState(model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    # mj_forward derives all that follows from the state but overwrites the solver's warm start,
    # without which the continuation drifts: hence the second time.
    mujoco.mj_forward(model, data)
    mujoco.mj_setState(model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)

"""An environment that hides its state and fails on demand."""

from __future__ import annotations

import os

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Opaque(gymnasium.Env):
    """An environment that keeps its state to itself and misbehaves on demand.

    The first number of an action says what happens: above 0.5 it fails in the way of its kind.
    """

    observation_space = Box(-np.inf, np.inf, (2, 2))
    action_space = Box(-1, 1, (1,))

    def __init__(self, kind: str = "nan reward") -> None:
        self.kind = kind

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros((2, 2), np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, reward = np.zeros((2, 2), np.float32), 1.0
        if action[0] > 0.5:
            if self.kind == "exit":
                os._exit(3)
            if self.kind == "raise":
                raise OverflowError("the simulation blew up")
            if self.kind == "nan reward":
                reward = np.nan
            else:
                observation[1, 0] = np.inf
        return observation, reward, False, False, {}


class Settings(Opaque):
    """Observes the variables of the process it is in."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        disabled = os.environ.get("MUJOCO_GL") == "disabled"
        return np.array([[os.environ["OMP_NUM_THREADS"], disabled]] * 2, np.float32), {}


def fails_in_a_worker(parent: int) -> gymnasium.Env:
    """An environment in the process `parent`, an error in any other."""
    if os.getpid() != parent:
        raise FileNotFoundError("no such robot")
    return Opaque()

"""A point on a plane that moves as it is told: an environment whose every number is known."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

GAIN = 0.5


class Plane(gymnasium.Env):
    """x' = x + u / 2, reward −|x'|², from x uniform in [−1, 1]². Best is u = −2x, clipped to the box.

    Episodes have `length` steps, or as many as the seed says (1 + seed modulo 7) where it is None. That is a
    time limit, unless they are `final`.
    """

    action_repeat = 1

    def __init__(self, length: int | None = 20, render_mode: str | None = None, final: bool = False) -> None:
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)
        self._length = self._steps_left = length or 1
        self._by_seed = length is None
        self._x = np.zeros(2)
        self.render_mode, self._final = render_mode, final

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if self._by_seed and seed is not None:
            self._length = 1 + seed % 7
        self._steps_left = self._length
        self._x = self.np_random.uniform(-1, 1, 2)
        return self._x.astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._x = self._x + GAIN * np.clip(action, -1, 1)
        self._steps_left -= 1
        over = self._steps_left == 0
        reward = -float(self._x @ self._x)
        return self._x.astype(np.float32), reward, over and self._final, over and not self._final, {}

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            return None
        return np.full((32, 48, 3), 128, np.uint8)

    def get_state(self) -> dict[str, Any]:
        random = self.np_random.bit_generator.state
        return {"x": self._x, "left": self._steps_left, "length": self._length, "random": random}

    def set_state(self, state: dict[str, Any]) -> None:
        self.reset()
        self._x, self._steps_left, self._length = np.array(state["x"]), state["left"], state["length"]
        self.np_random.bit_generator.state = state["random"]

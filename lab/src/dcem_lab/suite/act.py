"""A trained controller for use in your own environment loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from dcem_lab.suite import evaluate
from dcem_lab.suite.agents import Planner
from dcem_lab.suite.envs.dmc import probe
from dcem_lab.suite.trained import Trained


class Agent:
    """Observations in, actions out, one call for every step of the task.

        agent = Agent.load("cheetah-run")
        agent.reset()
        for _ in range(1000):
            action = agent.act(observation)
            ...

    Observations are flat vectors (n,), as the lab's environments have them (`dcem_lab.suite.envs`), or (E, n)
    for E environments that begin and end together. Actions (m,) or (E, m) are in the task's own units.

    Args:
        trained: the controller, on the device where it plans.
        seed: of the planner's samples.
    """

    def __init__(self, trained: Trained, seed: int = 0) -> None:
        self.trained = trained
        self._model = trained.model
        self._device = next(self._model.parameters()).device
        self._generator = Generator(self._device).manual_seed(seed)
        self._plan = Planner(self._model, trained.planner, trained.decoder, self._generator, trained.value)
        env = probe(trained.environment())
        self._control = env.control
        self.action_repeat = env.action_repeat
        """Calls of `act` for which an action is held."""
        self.reset()

    @classmethod
    def load(
        cls,
        name_or_folder: str | Path,
        device: str = "cpu",
        snapshot: str = "best",
        seed: int = 0,
        **planner: Any,
    ) -> Agent:
        """From weights that ship or a run folder; ``planner`` changes how it plans (``samples=100``)."""
        return cls(evaluate.load(name_or_folder, torch.device(device), snapshot, **planner), seed)

    def reset(self) -> None:
        """A new episode begins."""
        self._calls = 0
        self._state: Tensor | None = None
        self._action = torch.zeros(0)

    @torch.no_grad()
    def act(self, observation: np.ndarray | Tensor) -> np.ndarray:
        """The action to take now."""
        seen = torch.as_tensor(observation, dtype=torch.float32, device=self._device)
        if seen.shape[-1:] != (self._model.obs_dim,) or seen.ndim > 2:
            raise ValueError(
                f"observation must have shape ({self._model.obs_dim},) or (E, {self._model.obs_dim}), "
                f"got {tuple(seen.shape)}"
            )
        if self._calls % self.action_repeat == 0:
            rows = seen.reshape(-1, self._model.obs_dim)
            if self._state is None:
                self._state = self._model.initial(rows)
            else:
                self._state = self._model.observe(self._state, self._action, rows)
            self._action = self._plan(self._state)
        self._calls += 1
        return self._control(self._action.reshape(*seen.shape[:-1], -1).cpu().numpy())

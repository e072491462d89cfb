"""A world model and a planner as a controller: an agent without exploration and learning."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import Generator, Tensor

from dcem import Decoder
from dcem_lab.suite.agents.planner import Planner, PlannerConfig
from dcem_lab.suite.agents.value import Value
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.rssm import RSSM


def flat_size(space: Space) -> int:
    """The dimension of a vector space."""
    if space.shape is None or len(space.shape) != 1:
        raise ValueError(f"space must be one of vectors, got {space}")
    return space.shape[0]


class Transition(NamedTuple):
    """The result of a step of all E environments, on the host."""

    next_observations: np.ndarray  # (E, n), an episode's last one where it ended
    rewards: np.ndarray  # (E,)
    terminated: np.ndarray  # (E,)
    ended: np.ndarray  # (E,), terminated or cut off by a time limit
    observations: np.ndarray  # (E, n), to continue from: the first of a new episode where one ended


def step_environments(envs: ParallelEnv, actions: np.ndarray) -> Transition:
    """Step all environments and start a new episode where one has ended."""
    next_observations, rewards, terminated, truncated, _ = envs.step(actions)
    ended = terminated | truncated
    observations = envs.reset(options={"reset_mask": ended})[0] if ended.any() else next_observations
    return Transition(next_observations, rewards, terminated, ended, observations)


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """An array from the environments as a tensor on the device, in single precision. Does not wait."""
    tensor = torch.from_numpy(array)
    if tensor.dtype == torch.float64:
        tensor = tensor.float()
    return tensor.to(device, non_blocking=True)


def follow(model: RSSM, states: Tensor, actions: Tensor, observations: Tensor, ended: Tensor) -> Tensor:
    """The model states (E, S) after actions (E, m) led to observations (E, n), new where ``ended`` (E,)."""
    followed = model.observe(states, actions, observations)
    return torch.where(ended.unsqueeze(-1), model.initial(observations), followed)


class Following:
    """E environments in mid-episode, the model states that follow them, and the returns so far."""

    def __init__(self, envs: ParallelEnv, model: RSSM) -> None:
        self.envs, self.model, n_envs = envs, model, envs.num_envs
        self._device = next(model.parameters()).device
        self._observations = torch.zeros(n_envs, model.obs_dim, device=self._device)
        self._states = torch.zeros(n_envs, model.state_dim, device=self._device)
        self._sums = np.zeros(n_envs)

    def restart(self, seed: int) -> None:
        """Start the first episode in every environment."""
        self._observations = on_device(self.envs.reset(seed=seed)[0], self._device)
        self._states = self.model.initial(self._observations)

    def count(self, transition: Transition) -> list[float]:
        """The returns of the episodes that ended with this step."""
        self._sums += transition.rewards
        finished = self._sums[transition.ended].tolist()
        self._sums[transition.ended] = 0.0
        return finished

    def state_dict(self) -> dict[str, Any]:
        """The environments in mid-episode and what belongs to them."""
        return {
            "envs": self.envs.get_state(),
            "observations": self._observations,
            "states": self._states,
            "sums": self._sums.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.envs.set_state(state["envs"])
        self._observations = state["observations"].to(self._device)
        self._states = state["states"].to(self._device)
        self._sums = np.array(state["sums"])


class Episode(NamedTuple):
    """Statistics of one episode."""

    seed: int
    total: float  # the undiscounted return
    length: int  # actions taken


class Controller:
    """Plays episodes in many environments at once, without exploration.

    Args:
        model: follows the episodes; its weights may change between them.
        planner: how much to plan; its samples are the same for every call of `play`.
        decoder: plan in its latent space.
        value: plan to where it takes over.
    """

    def __init__(
        self, model: RSSM, planner: PlannerConfig, decoder: Decoder | None = None, value: Value | None = None
    ) -> None:
        self.model = model
        self._device = next(model.parameters()).device
        self._generator = Generator(self._device)
        self._plan = Planner(model, planner, decoder, self._generator, value)

    @torch.no_grad()
    def play(
        self, envs: ParallelEnv, seeds: Sequence[int], each_step: Callable[[], None] = lambda: None
    ) -> Iterator[Episode]:
        """An episode from every seed, in order, as many at once as there are environments.

        `each_step` is called after every step of all of them.
        """
        self._plan.refresh()
        self._generator.manual_seed(0)
        for first in range(0, len(seeds), envs.num_envs):
            yield from self._play_at_once(envs, seeds[first : first + envs.num_envs], each_step)

    def _play_at_once(
        self, envs: ParallelEnv, seeds: Sequence[int], each_step: Callable[[], None]
    ) -> list[Episode]:
        # Surplus environments also play the last seed, since all are stepped together.
        everywhere = [*seeds, *[seeds[-1]] * (envs.num_envs - len(seeds))]
        states = self.model.initial(on_device(envs.reset(seed=everywhere)[0], self._device))
        totals, lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, int)
        playing = np.ones(envs.num_envs, bool)
        while playing.any():
            actions = self._plan(states)
            transition = step_environments(envs, actions.cpu().numpy())
            totals += transition.rewards * playing
            lengths += playing
            playing &= ~transition.ended
            observations = on_device(transition.observations, self._device)
            ended = on_device(transition.ended, self._device)
            states = follow(self.model, states, actions, observations, ended)
            each_step()
        return [Episode(*numbers) for numbers in zip(seeds, totals.tolist(), lengths.tolist(), strict=False)]

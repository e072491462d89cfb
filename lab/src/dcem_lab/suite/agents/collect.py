"""Data collection in many environments in parallel: plan, step and record as a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from dcem import capture
from dcem_lab.runs.settings import Settings, setting
from dcem_lab.suite.agents.controller import Following, Transition, follow, on_device
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM


@dataclass(frozen=True, kw_only=True)
class CollectingConfig(Settings):
    """How an agent explores and what it remembers. The defaults are the paper's.

    Attributes:
        seed_episodes: S, initial episodes with random actions, before learning starts.
        seed_steps: minimum number of steps in the seed episodes, over all environments; short episodes are
            repeated.
        noise: standard deviation of the exploration noise.
        correlation: of the noise, and of random actions, from one step to the next. White noise (0) rarely
            moves a heavy body far, so sparse rewards are rarely found.
        noise_from_zero: vary the noise across environments from 0 to `noise`, instead of the same for all.
        policy_share: fraction of the environments in which the policy, if there is one, acts alone, so that
            it does not forget states that plans avoid.
        policy_steps: steps after which the policy moves on to other environments; 0 to stay. Critics then see
            what the policy earns from states that plans lead to, which is what plans expect of them.
        replay_steps: steps kept in the replay buffer, over all environments.
        checkpoint_mb: megabytes of the newest replay data that a checkpoint keeps.
    """

    seed_episodes: int = setting(5, least=1)
    seed_steps: int = setting(0, least=0)
    noise: float = setting(0.3, least=0)
    correlation: float = setting(0.0, least=0, below=1)
    noise_from_zero: bool = False
    policy_share: float = setting(0.0, least=0, most=1)
    policy_steps: int = setting(0, least=0)
    replay_steps: int = setting(1_000_000, least=1)
    checkpoint_mb: float = setting(100.0, above=0)

    def noise_in(self, n_envs: int, device: torch.device | str) -> Tensor:
        """Standard deviations (E,) of the noise in every environment."""
        noise = torch.full((n_envs,), self.noise, device=device)
        return noise * torch.linspace(0, 1, n_envs, device=device) if self.noise_from_zero else noise

    def by_policy(self, n_envs: int, device: torch.device | str) -> Tensor | None:
        """In which environments (E,) the policy acts alone, evenly spaced; None for none."""
        due = (self.policy_share * torch.arange(n_envs + 1, device=device) + 0.5).floor()
        return due.diff() > 0 if self.policy_share else None


class Collector(Following):
    """Steps environments with planned actions and writes the transitions to a replay buffer.

    A step is three calls, so that a learner can use the device while the environments use the CPU:
    `act` plans, `step_environments` does not touch the device, `record` writes replay, statistics and states.

    Args:
        envs: E environments.
        model: follows the episodes, and its normaliser and reward scale learn from them.
        replay: where transitions go.
        noise: standard deviations (E,) of the exploration noise on each environment's actions.
        correlation: of the noise, and of random actions, from one step to the next.
        generator: of exploration noise and random actions, on the model's device.
    """

    def __init__(
        self,
        envs: ParallelEnv,
        model: RSSM,
        replay: ReplayBuffer,
        noise: Tensor,
        generator: Generator,
        correlation: float = 0.0,
    ) -> None:
        super().__init__(envs, model)
        self.replay, self._noise, self._generator = replay, noise.unsqueeze(-1), generator
        self._actions = noise.new_zeros(envs.num_envs, model.action_dim)
        self._correlation, self._drift = correlation, self._actions  # of no variance at first
        self.returns: list[float] = []
        """Of the episodes that ended last, as many as there are environments; oldest first."""
        self.episodes = 0
        """How many have ended."""
        self.steps = 0
        """Steps of all environments together."""
        changes = [*replay.state, *model.normalizer.buffers(), *model.reward_scale.buffers()]
        self._remember = capture(self._remember_one_by_one, changes=changes)

    @torch.no_grad()
    def act(self, plan: Callable[[Tensor], Tensor] | None) -> np.ndarray:
        """Actions (E, m), planned from model states and with exploration noise, or uniform in [-1, 1].

        Waits for the device.
        """
        drawn = torch.empty_like(self._actions)
        if plan is None and self._correlation == 0:
            self._actions = drawn.uniform_(-1, 1, generator=self._generator)
            return self._actions.cpu().numpy()
        new = (1 - self._correlation**2) ** 0.5
        self._drift = self._correlation * self._drift + new * drawn.normal_(generator=self._generator)
        if plan is None:
            self._actions = torch.erf(self._drift / 2**0.5)  # which a standard normal makes uniform
        else:
            self._actions = (plan(self._states) + self._noise * self._drift).clamp(-1, 1)
        return self._actions.cpu().numpy()

    @torch.no_grad()
    def record(self, transition: Transition) -> None:
        """Store the transition that the last actions led to. Does not wait for the device."""
        arrived = [on_device(part, self._device) for part in transition]
        self._states = self._remember(self._states, self._observations, self._actions, *arrived)
        self._observations = arrived[-1]
        finished = self.count(transition)
        self.episodes += len(finished)
        self.steps += self.envs.num_envs
        self.returns = (self.returns + finished)[-self.envs.num_envs :]

    def _remember_one_by_one(
        self, states: Tensor, observations: Tensor, actions: Tensor, *arrived: Tensor
    ) -> Tensor:
        next_observations, rewards, terminated, ended, following = arrived
        self.replay.add(observations, actions, rewards, next_observations, ended, terminated)
        self.model.normalizer.update(next_observations)
        self.model.reward_scale.update(rewards)
        return follow(self.model, states, actions, following, ended)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the replay buffer."""
        counts = {"returns": self.returns, "episodes": self.episodes, "steps": self.steps}
        return super().state_dict() | counts | {"drift": self._drift}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.returns, self.episodes = list(state["returns"]), state["episodes"]
        self.steps = state.get("steps", 0)  # missing in older checkpoints, as is the next
        self._drift = state.get("drift", self._drift).to(self._device)

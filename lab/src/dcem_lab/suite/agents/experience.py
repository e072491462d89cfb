"""Experience of a policy, with everything needed to plan each of its steps again."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from dcem import capture
from dcem_lab.suite.agents.controller import Following, on_device, step_environments
from dcem_lab.suite.agents.policy import Policy
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.replay import ReplayBuffer


class Experience(NamedTuple):
    """T consecutive steps of E environments, (T, E, ...), in tensors that stay in place."""

    states: Tensor  # (T, E, S), the model's, before the action
    reached: Tensor  # (T, E, S), the model's, after it; an episode's last one where it ended
    noise: Tensor  # (T, E, iterations, N, n), the planner's
    means: Tensor  # (T, E, m), the planned actions
    actions: Tensor  # (T, E, m), the sampled actions around these, not clipped
    rewards: Tensor  # (T, E)
    terminated: Tensor  # (T, E)
    ended: Tensor  # (T, E), terminated or cut off by a time limit
    arrived: Tensor  # (T, E, o), the observations after the actions; an episode's last one where it ended
    following: Tensor  # (T, E, o), the observations to continue from; of a new episode where one ended

    @staticmethod
    def zeros(steps: int, n_envs: int, policy: Policy) -> Experience:
        model, device = policy.model, policy.log_std.device
        S, m, o = model.state_dim, model.action_dim, model.obs_dim

        def room(*size: int, dtype: torch.dtype | None = None) -> Tensor:
            return torch.zeros(steps, n_envs, *size, dtype=dtype, device=device)

        return Experience(
            states=room(S), reached=room(S), noise=room(*policy.noise_shape), means=room(m), actions=room(m),
            rewards=room(), terminated=room(dtype=torch.bool), ended=room(dtype=torch.bool),
            arrived=room(o), following=room(o),
        )  # fmt: skip

    def flat(self, name: str) -> Tensor:
        """A field as (T E, ...), sharing its memory."""
        return getattr(self, name).flatten(0, 1)


class Gatherer(Following):
    """Runs a policy, a fixed number of steps at a time; episodes continue from one call to the next.

    Args:
        envs: E environments.
        policy: plays; its actor keeps the weights of the last `refresh`.
        steps: T, of every environment in a call.
        generator: of the planner's noise and of the actions, on the policy's device.
        replay: remembers all the steps too, if given.
    """

    def __init__(
        self,
        envs: ParallelEnv,
        policy: Policy,
        steps: int,
        generator: Generator,
        replay: ReplayBuffer | None = None,
    ) -> None:
        super().__init__(envs, policy.model)
        self.policy, self.steps = policy, steps
        self.experience = Experience.zeros(steps, envs.num_envs, policy)
        self._plan, self._generator, self._replay = policy.actor(), generator, replay
        self._follow = capture(self._one_step, compile=False)
        self.returns: list[float] = []
        """Of the episodes that ended in the last call."""

    def refresh(self) -> None:
        """Copy the policy's weights again."""
        self._plan.refresh()

    @torch.no_grad()
    def gather(self) -> Experience:
        """T steps of all environments, replacing the previous ones."""
        self.returns = []
        for t in range(self.steps):
            self._step(t)
        return self.experience

    def _step(self, t: int) -> None:
        noise = self.experience.noise[t].normal_(generator=self._generator)
        mean = self._plan(self._states, noise.transpose(0, 1))
        drawn = torch.empty_like(mean).normal_(generator=self._generator)
        actions = mean + self.policy.log_std.exp() * drawn
        taken = actions.clamp(-1, 1)
        transition = step_environments(self.envs, taken.cpu().numpy())
        self.returns += self.count(transition)
        arrived, rewards, terminated, ended, following = (
            on_device(part, self._device) for part in transition
        )
        reached, states = self._follow(self._states, actions, ended, arrived, following)
        lived = Experience(
            self._states, reached, noise, mean, actions, rewards, terminated, ended, arrived, following
        )
        for slots, value in zip(self.experience, lived, strict=True):
            if value is not noise:  # which was drawn there
                slots[t].copy_(value)
        if self._replay is not None:
            self._replay.add(self._observations, taken, rewards, arrived, ended, terminated)
        self._states, self._observations = states, following

    def _one_step(
        self, states: Tensor, actions: Tensor, ended: Tensor, arrived: Tensor, following: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The model states that were reached, and those to continue from."""
        reached = self.model.observe(states, actions.clamp(-1, 1), arrived)
        return reached, torch.where(ended.unsqueeze(-1), self.model.initial(following), reached)

    @torch.no_grad()
    def filter_again(self) -> None:
        """Filter the same steps with the current model, since states of older weights are stale.

        The first states stay: those of new episodes never change, others are known only from the previous
        call.
        """
        e = self.experience
        states = e.states[0].clone()
        for t in range(self.steps):
            e.states[t].copy_(states)
            reached, states = self._follow(states, e.actions[t], e.ended[t], e.arrived[t], e.following[t])
            e.reached[t].copy_(reached)
        self._states = states

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`, which has neither policy nor generator nor replay buffer."""
        super().load_state_dict(state)
        self.refresh()

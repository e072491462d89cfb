"""Critics and an actor in planning: a terminal value, and plans proposed by the actor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dcem.control import sequence_cost
from dcem_lab.suite.agents.value import Value
from dcem_lab.suite.rssm import RSSM
from dcem_lab.suite.rssm.model import pessimistic


class Situation(NamedTuple):
    """What a guided plan starts from."""

    state: Tensor  # (E, s), of the world model
    plans: Tensor  # (E, P, H, m), of the actor; the first without noise


class InSituations:
    """A model that takes situations and uses their states. Without plans, a situation is just a state."""

    def __init__(self, imagination: Any) -> None:
        self._imagination = imagination

    def sequence_cost(self, situation: Any, *arguments: Any) -> Tensor:
        state = situation.state if isinstance(situation, Situation) else situation
        return sequence_cost(self._imagination, state, *arguments)


class Guide(nn.Module):
    """An actor and its critics in the states of a world model.

    A state contains the observation x as predicted by each of M members. The actor acts on their mean. The
    critics evaluate each member's x, with the action that the actor takes there.

    Args:
        value: critics and actor.
        model: what they live in.
        pessimism: the value of a state is mean − pessimism · standard deviation over critics and members.
        judge: a faster function of observations (..., M, X) with the same result, without gradients.
    """

    def __init__(
        self, value: Value, model: RSSM, pessimism: float, judge: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.value, self.model, self.pessimism, self._judge = value, model, pessimism, judge

    def act(self, state: Tensor) -> Tensor:
        """The actor's actions (..., m) in states (..., s)."""
        return self.value.actor(self.model.observed(state).mean(dim=-2))

    def worth(self, state: Tensor) -> Tensor:
        """The values (...) of states (..., s), in units of the reward."""
        x = self.model.observed(state)
        if self._judge is not None:
            return self._judge(x)
        q = self.value(x, self.value.actor(x))
        if self.model.config.termination:  # there is no reward after a termination
            q = q * self.model.members(state)[..., -1]
        return pessimistic(q.movedim(0, -1).flatten(-2), self.pessimism, dim=-1)

    def plans(self, state: Tensor, noise: Tensor) -> Tensor:
        """Actions (E, P, H, m) that the actor takes from states (E, s) in the model, with noise added.

        The model steps without rewards, which would double the cost.
        """
        model, (E, P) = self.model, noise.shape[:2]
        H, X = model.config.hidden, model.features
        members = self.model.members(state).transpose(0, 1).unsqueeze(2)
        members = members.expand(-1, -1, P, -1).flatten(1, 2)  # (M, E · P, …)
        hidden, x = members[..., :H], members[..., H : H + X]
        taken: list[Tensor] = []
        for epsilon in noise.flatten(0, 1).unbind(1):
            if taken:
                action = taken[-1].expand(len(x), -1, -1)
                hidden = model.gru(torch.cat([x, action], dim=-1), hidden)
                x, _ = model.predict(hidden, x)
            taken.append((self.value.actor(x.mean(dim=0)) + epsilon).clamp(-1, 1))
        return torch.stack(taken, dim=1).unflatten(0, (E, P))

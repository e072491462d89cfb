"""The value beyond a plan: critics Q(x, u), and the actor π(x) that they evaluate.

Both take x, the features of an observation from the world model's normaliser, and not the model's recurrent
state: they can be trained on replayed transitions alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from dcem_lab.suite.agents.two_hot import TwoHot
from dcem_lab.suite.rssm.nets import EnsembleMLP

KINDS = ("scalar", "two-hot")


class Value(nn.Module):
    """K critics and a deterministic actor.

    Args:
        features: X, numbers in x.
        action_dim: m, numbers in an action.
        critics: K.
        width: units of the two hidden layers of every network.
        gamma: discount per action; a plan that ends in this value has the same.
        reward_scale: the critics' unit is 1 / reward_scale of the reward's.
        values: what a critic says: "scalar", a number, or "two-hot", a distribution over bins.
        bins, span, symlog: those of `TwoHot`, in the critics' unit.
        generator: where the first weights come from, on the CPU.

    `settings` holds these arguments, but for the last, as JSON values.

    >>> value = Value(features=3, action_dim=1)
    >>> x = torch.zeros(7, 3)
    >>> value.actor(x).shape, value(x, value.actor(x)).shape
    (torch.Size([7, 1]), torch.Size([5, 7]))
    """

    def __init__(
        self,
        features: int,
        action_dim: int,
        critics: int = 5,
        width: int = 256,
        gamma: float = 0.99,
        reward_scale: float = 0.1,
        values: str = "scalar",
        bins: int = 101,
        span: float = 10.0,
        symlog: bool = True,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {
            "features": features, "action_dim": action_dim, "critics": critics, "width": width,
            "gamma": gamma, "reward_scale": reward_scale, "values": values,
            "bins": bins, "span": span, "symlog": symlog,
        }  # fmt: skip
        self.gamma, self.reward_scale = gamma, reward_scale
        self.bins = TwoHot(bins, span, symlog) if values == "two-hot" else None
        hidden = [width, width]
        self.actor = Actor(features, action_dim, hidden, generator)
        outputs = 1 if self.bins is None else bins
        self.critics = EnsembleMLP([features + action_dim, *hidden, outputs], None, critics, generator)
        if self.bins is not None:  # equal logits: the initial values are zero
            nn.init.zeros_(self.critics.weights[-1])
            nn.init.zeros_(self.critics.biases[-1])

    def forward(self, x: Tensor, u: Tensor) -> Tensor:
        """The values of all critics: (..., X) and (..., m) → (K, ...), in units of the reward."""
        return self.read(self.say(x, u)) / self.reward_scale

    def say(self, x: Tensor, u: Tensor, frozen: bool = False) -> Tensor:
        """The critics' outputs (K, ..., 1 or bins), with gradients only for x and u if ``frozen``."""
        rows = torch.cat([x, u], dim=-1).flatten(0, -2)
        said = self.critics(rows.expand(self.settings["critics"], *rows.shape), frozen)
        return said.unflatten(1, x.shape[:-1])

    def read(self, said: Tensor) -> Tensor:
        """Outputs (K, ..., 1 or bins) as numbers (K, ...), in the critics' unit."""
        return said.squeeze(-1) if self.bins is None else self.bins.mean(said)

    def errors(self, said: Tensor, targets: Tensor) -> Tensor:
        """How far outputs (K, ..., 1 or bins) are from targets (...) in the critics' unit: (K, ...)."""
        if self.bins is None:
            return (said.squeeze(-1) - targets).square()
        return self.bins.loss(said, targets)


class Actor(nn.Module):
    """u = tanh(net(x))."""

    def __init__(
        self, features: int, action_dim: int, hidden: list[int], generator: Generator | None = None
    ) -> None:
        super().__init__()
        self.net = EnsembleMLP([features, *hidden, action_dim], None, 1, generator)

    def raw(self, x: Tensor) -> Tensor:
        """(..., X) → (..., m), before the tanh."""
        return self.net(x.flatten(0, -2).unsqueeze(0)).reshape(*x.shape[:-1], -1)

    def forward(self, x: Tensor) -> Tensor:
        """(..., X) → (..., m)."""
        return self.raw(x).tanh()

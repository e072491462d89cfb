"""A planner's view of a world model with constant weights, whatever rolls it out."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dcem_lab.suite.rssm.model import RSSM

TerminalCost = Callable[[Tensor], Tensor] | None
"""Model states (*B, N, s) at the ends of rollouts → costs (*B, N)."""


class Weights(NamedTuple):
    """What a rollout reads of an RSSM: weights (M, in, out) and biases (M, out), zero where rounded up.

    A step's inputs are rows [h, x, u, 0 …]: H numbers of h, and P of the rest.
    """

    hidden: Tensor  # (M, H, 3H), of the GRU
    inputs: Tensor  # (M, P, 3H), of the GRU
    gates: Tensor  # (M, 4H), biases of the GRU
    observation: list[tuple[Tensor, Tensor]]  # H → … → P, without deviations
    reward: list[tuple[Tensor, Tensor]]  # H + P → … → 1
    termination: list[tuple[Tensor, Tensor]]  # H + P → … → 1; empty without such a head


class Imagination(ABC):
    """The cost of whole action sequences in a model: see `dcem.control.Model`."""

    def __init__(self, model: RSSM) -> None:
        self.model, self.action_dim = model, model.action_dim

    @abstractmethod
    def refresh(self) -> None:
        """Take the weights again from the model: call it when they have changed."""

    @abstractmethod
    def roll_out(
        self, state: Tensor, actions: Tensor, discount: float, ended: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Costs of E · N trajectories, in the unit that the model predicts, from states (E, s) and actions
        (E, N, T, m); and where they end, (E · N, s) in any shape, if ``ended`` asks for that."""

    def sequence_cost(
        self, state: Tensor, actions: Tensor, discount: float = 1.0, terminal_cost: TerminalCost = None
    ) -> Tensor:
        """Total cost (*B, N) of actions (*B, N, T, m) from states (*B, s), with that of where they end."""
        model, (*batch, N, T, action_dim) = self.model, actions.shape
        if action_dim != model.action_dim or state.shape != (*batch, model.state_dim):
            raise ValueError(
                f"sequence_cost: state must be (*B, {model.state_dim}) and actions (*B, N, H, "
                f"{model.action_dim}), got {tuple(state.shape)} and {tuple(actions.shape)}"
            )
        start, sequences = state.reshape(-1, model.state_dim), actions.reshape(-1, N, T, action_dim)
        cost, ends = self.roll_out(start, sequences, discount, terminal_cost is not None)
        cost = model.reward_scale.decode(cost).reshape(*batch, N)
        if terminal_cost is not None and ends is not None:
            ends = ends.reshape(*batch, N, model.state_dim).to(actions.dtype)
            cost = cost + discount**T * terminal_cost(ends)
        return cost.to(actions.dtype)


def total_cost(model: RSSM, rewards: Tensor, discount: float) -> Tensor:
    """Σ_t γ^t c_t (R,) of what the members say that steps earn, (M, T, R)."""
    costs = model.cost(rewards.flatten(1)).unflatten(0, rewards.shape[1:])
    if discount != 1:
        # Not a matrix product: tensor cores would round it.
        powers = discount ** torch.arange(len(costs), device=costs.device, dtype=costs.dtype)
        costs = costs * powers.unsqueeze(-1)
    return costs.sum(dim=0)


def last_states(model: RSSM, rows: Tensor, H: int, dtype: torch.dtype) -> Tensor:
    """[h, x] (n, M, H + X) of rows [h, x, …] (M, n, H + P), whose H may be rounded up."""
    states = torch.cat([rows[..., : model.config.hidden], rows[..., H : H + model.features]], dim=-1)
    return states.transpose(0, 1).to(dtype)

"""Engines that roll out a world model with constant weights, step by step or in fused kernels."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

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


class Engine(Protocol):
    """Rolls out a model, for `dcem_lab.suite.rssm.fast.imagine` to differentiate."""

    hidden: int
    """H, which may be rounded up."""

    def refresh(self) -> None:
        """Take the weights again from the model."""

    def weights(self) -> Weights:
        """The weights it rolls out with, without gradients."""

    def imagine(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """States (E, s) and actions (E, N, T, m) → rows (M, T + 1, R, H + P) and rewards (M, T, R).

        R is at least E · N.
        """


def total_cost(costs: Tensor, discount: float) -> Tensor:
    """Σ_t γ^t c_t of costs (T, ...)."""
    if discount == 1:
        return costs.sum(dim=0)
    powers = discount ** torch.arange(len(costs), device=costs.device, dtype=costs.dtype)
    # Not a matrix product: tensor cores would round it.
    return (costs * powers.view(-1, *[1] * (costs.ndim - 1))).sum(dim=0)


def last_states(model: RSSM, rows: Tensor, H: int, dtype: torch.dtype) -> Tensor:
    """[h, x] (n, M, H + X) of rows [h, x, …] (M, n, H + P), whose H may be rounded up."""
    states = torch.cat([rows[..., : model.config.hidden], rows[..., H : H + model.features]], dim=-1)
    return states.transpose(0, 1).to(dtype)


def check_sequences(model: RSSM, state: Tensor, actions: Tensor) -> None:
    """ValueError unless these are states (*B, s) and action sequences (*B, N, H, m)."""
    *batch, _, _, action_dim = actions.shape
    if action_dim != model.action_dim or state.shape != (*batch, model.state_dim):
        raise ValueError(
            f"sequence_cost: state must be (*B, {model.state_dim}) and actions (*B, N, H, "
            f"{model.action_dim}), got {tuple(state.shape)} and {tuple(actions.shape)}"
        )

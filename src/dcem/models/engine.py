"""What rolls out a world model of constant weights, step by step or in fused kernels."""

from typing import NamedTuple, Protocol

from torch import Tensor


class Weights(NamedTuple):
    """What a rollout reads of an RSSM: weights (M, in, out) and biases (M, out), zero where rounded up.

    A step's inputs are rows [h, x, u, 0 …]: H numbers of h, and P of the rest.
    """

    hidden: Tensor  # (M, H, 3H), of the GRU
    inputs: Tensor  # (M, P, 3H), of the GRU
    gates: Tensor  # (M, 4H), biases of the GRU
    observation: list[tuple[Tensor, Tensor]]  # H → … → P, without deviations
    reward: list[tuple[Tensor, Tensor]]  # H + P → … → 1


class Engine(Protocol):
    """Rolls out a model, for `dcem.models.imagine` to differentiate."""

    def refresh(self) -> None:
        """Take the weights anew from the model."""

    def weights(self) -> Weights:
        """Those it rolls out with, without gradients."""

    def imagine(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """States (E, s) and actions (E, N, T, m) → rows (M, T + 1, R, H + P) and rewards (M, T, R).

        R is at least E · N.
        """

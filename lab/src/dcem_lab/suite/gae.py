"""Generalised advantage estimation: how much better an action was than the value function predicted."""

from __future__ import annotations

import torch
from torch import Tensor


def advantages(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    ended: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """Advantages (T, *E) of T consecutive steps in each of E environments.

        δ_t = r_t + γ V(s'_t) [not terminated_t] − V(s_t),        A_t = δ_t + γ λ A_{t+1} [not ended_t]

    A time limit ends an episode but not the task: its last step bootstraps from the value of the state that
    it reached, and so does the last of the T steps, wherever it is. Only a termination has no future.

    Args, all (T, *E) but the last two:
        values, next_values: V(s_t), and V(s'_t) of the state that step t reached, before any reset.
        terminated: whether the task was over at s'_t.
        ended: whether the episode was, by termination or by a time limit.
        gamma: γ, the discount.
        lam: λ, from 0 (one step, least variance) to 1 (whole returns, least bias).

    >>> ones, no = torch.ones(3), torch.zeros(3, dtype=torch.bool)
    >>> advantages(ones, ones, ones, no, no, gamma=0.5, lam=0.5)
    tensor([0.6562, 0.6250, 0.5000])
    """
    errors = rewards + gamma * next_values.masked_fill(terminated, 0.0) - values
    decays = gamma * lam * (~ended).to(errors.dtype)
    advantage, backwards = torch.zeros_like(errors[0]), []
    for error, decay in zip(reversed(errors.unbind()), reversed(decays.unbind()), strict=True):
        advantage = error + decay * advantage
        backwards.append(advantage)
    return torch.stack(backwards[::-1])

"""What a model is, and what a sequence of actions costs on it."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class Model(Protocol):
    """Dynamics and cost of a system. States are one tensor; any leading dimensions.

    A model that can go through many steps faster than one at a time may offer that too, as
    `unroll(state, actions, discount) -> (last_state, total_cost)` for actions (..., H, m).
    """

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(..., s) and (..., m) -> the next state (..., s), and the cost (...) of this step."""


def rollout(
    model: Model,
    state: Tensor,
    actions: Tensor,
    discount: float = 1.0,
    terminal_cost: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Total cost (...) of actions (..., H, m) from state (..., s): Σ_t γ^t c_t + γ^H · terminal_cost(s_H).

    >>> class Integrator:
    ...     def step(self, state, action):
    ...         return state + action, state.square().sum(-1)
    >>> rollout(Integrator(), torch.tensor([2.0]), torch.tensor([[-1.0], [-1.0], [0.0]]))
    tensor(5.)
    """
    if hasattr(model, "unroll"):
        state, total = model.unroll(state, actions, discount)
    else:
        costs = []
        for t, action in enumerate(actions.unbind(-2)):
            state, cost = model.step(state, action)
            costs.append(cost if discount == 1 else discount**t * cost)
        total = torch.stack(costs).sum(0)
    if terminal_cost is None:
        return total
    return total + discount ** actions.shape[-2] * terminal_cost(state)

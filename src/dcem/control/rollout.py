"""What a model is, and what a sequence of actions costs on it."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Model(Protocol):
    """Dynamics and cost of a system. States are one tensor, or a nesting of them; any leading dimensions.

    A model that knows a faster way through whole sequences may offer that too, as a method
    `sequence_cost(state, actions, discount, terminal_cost)`: see the function of that name.
    """

    def step(self, state: Any, action: Tensor) -> tuple[Any, Tensor]:
        """(..., s) and (..., m) -> the next state (..., s), and the cost (...) of this step."""


class _Function:
    """A function of state and action as a model."""

    def __init__(self, step: Callable[[Any, Tensor], tuple[Any, Tensor]]) -> None:
        self.step = step


def as_model(model: Any) -> Any:
    """A model as it is; a function, or a module that is called, as one."""
    return model if hasattr(model, "step") or hasattr(model, "sequence_cost") else _Function(model)


def rollout(
    model: Model,
    state: Any,
    actions: Tensor,
    discount: float = 1.0,
    terminal_cost: Callable[[Any], Tensor] | None = None,
) -> Tensor:
    """Total cost (...) of actions (..., H, m) from state (..., s): Σ_t γ^t c_t + γ^H · terminal_cost(s_H).

    >>> class Integrator:
    ...     def step(self, state, action):
    ...         return state + action, state.square().sum(-1)
    >>> rollout(Integrator(), torch.tensor([2.0]), torch.tensor([[-1.0], [-1.0], [0.0]]))
    tensor(5.)
    """
    costs = []
    for t, action in enumerate(actions.unbind(-2)):
        state, cost = model.step(state, action)
        costs.append(cost if discount == 1 else discount**t * cost)
    total = torch.stack(costs).sum(0)
    if terminal_cost is None:
        return total
    return total + discount ** actions.shape[-2] * terminal_cost(state)


def sequence_cost(
    model: Model,
    state: Any,
    actions: Tensor,
    discount: float = 1.0,
    terminal_cost: Callable[[Any], Tensor] | None = None,
) -> Tensor:
    """Total cost (*B, N) of N candidates (*B, N, H, m) from each state (*B, s).

    The model's own `sequence_cost` where it has one, else a `rollout` of every candidate.
    """
    own = getattr(model, "sequence_cost", None)
    if own is not None:
        return own(state, actions, discount, terminal_cost)
    batch = actions.ndim - 3

    def spread(part: Tensor) -> Tensor:
        """(*B, ...) → (*B, N, ...)"""
        return part.unsqueeze(batch).expand(*actions.shape[:-2], *part.shape[batch:])

    return rollout(model, pytree.tree_map(spread, state), actions, discount, terminal_cost)

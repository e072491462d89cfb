"""The interface of a model, and the cost of a sequence of actions in it."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

TerminalCost = Callable[[Any], Tensor] | None  # last states (..., s) -> costs (...)


class Model(Protocol):
    """Dynamics and cost of a system. States are one tensor, or a nesting of them; any leading dimensions.

    A model with a faster way to evaluate whole sequences can provide it as a method
    `sequence_cost(state, actions, discount, terminal_cost)`: see the function of that name.
    """

    def step(self, state: Any, action: Tensor) -> tuple[Any, Tensor]:
        """(..., s) and (..., m) -> the next state (..., s), and the cost (...) of this step."""


class _Function:
    """A function of state and action as a model."""

    def __init__(self, step: Callable[[Any, Tensor], tuple[Any, Tensor]]) -> None:
        self.step = step


def as_model(model: Any) -> Any:
    """A model unchanged; a function, or a module that is called, wrapped as one."""
    return model if hasattr(model, "step") or hasattr(model, "sequence_cost") else _Function(model)


def rollout(
    model: Model, state: Any, actions: Tensor, discount: float = 1.0, terminal_cost: TerminalCost = None
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
    model: Model, state: Any, actions: Tensor, discount: float = 1.0, terminal_cost: TerminalCost = None
) -> Tensor:
    """Total cost (*B, N) of N candidates (*B, N, H, m) from each state (*B, s).

    The model's own `sequence_cost` where it has one, else a `rollout` of every candidate.
    """
    own = getattr(model, "sequence_cost", None)
    if own is not None:
        return own(state, actions, discount, terminal_cost)
    return rollout(model, spread(state, actions.shape[:-2]), actions, discount, terminal_cost)


def sequence_constraint(
    model: Model, state: Any, actions: Tensor, constraint: Callable[[Any, Tensor], Tensor]
) -> Tensor:
    """The constraint's values along N candidates (*B, N, H, m) from each state (*B, s): (*B, N, H c).

    constraint(x, u), (..., s) and (..., m) -> (..., c) or (...), is evaluated for every action u with the
    state x that it leads to.
    """
    state, along = spread(state, actions.shape[:-2]), []
    for action in actions.unbind(-2):
        state, _ = model.step(state, action)
        values = constraint(state, action)
        along.append(values.unsqueeze(-1) if values.ndim < action.ndim else values)
    return torch.cat(along, dim=-1)


def spread(state: Any, shape: torch.Size) -> Any:
    """A state (*B, ...), or a nesting of such tensors, for each of N candidates: (*B, N, ...)."""
    batch = len(shape) - 1
    return pytree.tree_map(lambda part: part.unsqueeze(batch).expand(*shape, *part.shape[batch:]), state)


def batch_of(state: Any) -> tuple[torch.Size, Tensor]:
    """*B of a state, and one of its floating-point tensors. *B is all but the last dimension of a tensor, or
    the first dimension in a nesting."""
    leaves = pytree.tree_leaves(state)
    floats = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not floats or any(leaf.ndim == 0 for leaf in floats):
        raise ValueError("MPC: state must hold a floating-point tensor with at least one dimension")
    return (state.shape[:-1] if isinstance(state, Tensor) else floats[0].shape[:1]), floats[0]


def one_candidate(state: Any, x: Tensor) -> Any:
    """A state (*B, ...) with a dimension for the candidates, (*B, 1, ...)."""
    return pytree.tree_map(lambda part: part.unsqueeze(x.ndim - 2), state)

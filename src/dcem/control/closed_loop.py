"""Closed-loop control: plan, act, observe, plan again."""

from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils import _pytree as pytree

from dcem.control.mpc import MPC
from dcem.control.risk import members
from dcem.control.rollout import Model, as_model


class Trajectory(NamedTuple):
    """What happened; time is the first dimension."""

    states: Any  # (T + 1, *B, s), or a nesting of such tensors
    actions: Tensor  # (T, *B, m)
    costs: Tensor  # (T, *B), of each step


@torch.no_grad()
def closed_loop(
    mpc: MPC, state: Any, steps: int, system: Model | None = None, generator: Generator | None = None
) -> Trajectory:
    """Control a system for some steps from states (*B, s), warm-starting every plan.

    `system` is what the actions are applied to; by default, the controller's own model.

    >>> from dcem.systems.pendulum import Pendulum
    >>> mpc = MPC(Pendulum(), horizon=15, low=-2.0, high=2.0)
    >>> closed_loop(mpc, torch.tensor([1.0, 0.0, 0.1]), steps=3).states.shape
    torch.Size([4, 3])
    """
    if system is None and len(members(mpc.model)) > 1:
        raise ValueError("closed_loop: system must be given where the controller has several models")
    system = as_model(members(mpc.model)[0] if system is None else system)
    states, actions, costs = [state], [], []
    plan = None
    for _ in range(steps):
        plan = mpc(states[-1], warm_start=plan, generator=generator, cost=False)
        following, cost = system.step(states[-1], plan.action)
        states.append(following)
        actions.append(plan.action)
        costs.append(cost)
    path = pytree.tree_map(lambda *parts: torch.stack(parts), *states)
    return Trajectory(path, torch.stack(actions), torch.stack(costs))

"""States and models as people have them: arrays, dicts, tuples of tensors, plain functions, values."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import dcem
from dcem.control import closed_loop
from dcem.systems import Pendulum


def step(state, action):
    following = state + 0.5 * action
    return following, following.square().sum(-1)


class Body(NamedTuple):
    position: torch.Tensor
    velocity: torch.Tensor


def move(state, action):
    """Push a body, whatever its state is kept in."""
    fields = state if isinstance(state, dict) else {"position": state[0], "velocity": state[1]}
    velocity = fields["velocity"] + 0.5 * action
    position = fields["position"] + 0.5 * velocity
    cost = position.square().sum(-1) + 0.1 * velocity.square().sum(-1)
    if isinstance(state, dict):
        return {"position": position, "velocity": velocity}, cost
    return (Body(position, velocity) if isinstance(state, Body) else (position, velocity)), cost


def test_a_function_is_a_model():
    mpc = dcem.MPC(step, horizon=5, action_dim=2)
    assert (mpc(torch.full((3, 2), 0.4)).actions[:, 0] < 0).all()


def test_a_module_that_is_called_is_a_model_and_trains():
    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.tensor(0.5))

        def forward(self, state, action):
            following = state + self.gain * action
            return following, following.square().sum(-1)

    mpc = dcem.MPC(Linear(), horizon=3, action_dim=2)
    mpc(torch.full((3, 2), 0.4)).cost.sum().backward()
    assert mpc.model.gain.grad is not None


def test_arrays_are_states():
    mpc = dcem.MPC(Pendulum(), horizon=4, low=-2.0, high=2.0)
    plan = mpc(np.array([[1.0, 0.0, 0.1], [0.0, 1.0, 0.0]]))
    assert plan.action.shape == (2, 1) and plan.action.dtype == torch.float32


@pytest.mark.parametrize(
    "state",
    [
        {"position": torch.full((3, 2), 0.5), "velocity": torch.zeros(3, 2)},
        (torch.full((3, 2), 0.5), torch.zeros(3, 2)),
        Body(torch.full((3, 2), 0.5), torch.zeros(3, 2)),
    ],
    ids=["dict", "tuple", "named tuple"],
)
def test_nestings_are_states(state):
    mpc = dcem.MPC(move, horizon=6, action_dim=2, solver=dcem.DCEM(n_iters=20))
    plan = mpc(state, warm_start=mpc(state))
    assert plan.actions.shape == (3, 6, 2) and (plan.actions[:, 0] < 0).all()
    path = closed_loop(mpc, state, steps=8)
    last = path.states["position"] if isinstance(state, dict) else path.states[0]
    assert last.shape == (9, 3, 2) and last[-1].norm() < last[0].norm() / 2


def test_nested_states_plan_as_one_tensor_does():
    def flat(state, action):
        (position, velocity), cost = move((state[..., :2], state[..., 2:]), action)
        return torch.cat([position, velocity], -1), cost

    noise = torch.randn(10, 3, 100, 12)
    position, velocity = torch.randn(3, 2), torch.randn(3, 2)
    nested = dcem.MPC(move, horizon=6, action_dim=2)((position, velocity), noise=noise)
    single = dcem.MPC(flat, horizon=6, action_dim=2)(torch.cat([position, velocity], -1), noise=noise)
    assert torch.allclose(nested.actions, single.actions, atol=1e-6)


def test_a_value_extends_the_horizon():
    """Walking through a valley: what lies beyond the horizon decides."""

    def line(state, action):  # costs until 2, and nothing from there on
        following = state + action
        return following, torch.where(following[..., 0] < 2, 1.0, 0.0) + 0.1 * action.abs().sum(-1)

    value = nn.Linear(1, 1)
    nn.init.constant_(value.weight, 5.0)
    nn.init.zeros_(value.bias)
    short = dcem.MPC(line, horizon=2, action_dim=1)
    ahead = dcem.MPC(line, horizon=2, action_dim=1, value=lambda s: value(s).squeeze(-1))
    state = torch.zeros(4, 1)
    assert short(state).action.mean() < 0.3 < 0.9 < ahead(state).action.mean()
    cost = dcem.MPC(line, horizon=2, action_dim=1, terminal_cost=lambda s: -value(s).squeeze(-1))
    noise = torch.randn(10, 4, 100, 2)
    assert torch.equal(cost(state, noise=noise).actions, ahead(state, noise=noise).actions)
    with pytest.raises(ValueError, match="value and terminal_cost"):
        dcem.MPC(line, 2, action_dim=1, value=value, terminal_cost=value)


def test_a_module_as_value_is_part_of_the_controller():
    class Value(nn.Linear):
        def forward(self, state):
            return super().forward(state).squeeze(-1)

    mpc = dcem.MPC(Pendulum(), horizon=3, low=-2.0, high=2.0, value=Value(3, 1), discount=0.9)
    assert "value.weight" in mpc.state_dict()
    mpc(torch.tensor([[1.0, 0.0, 0.1]])).actions.sum().backward()
    assert mpc.value.weight.grad.abs().sum() > 0

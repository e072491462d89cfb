"""The pendulum against its equations of motion, written again with numpy."""

import math
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from dcem.systems.pendulum import Pendulum


def oracle(state: np.ndarray, u: float, gravity=10.0, mass=1.0, length=1.0) -> tuple[np.ndarray, float]:
    theta, omega, u = math.atan2(state[1], state[0]), state[2], min(max(u, -2.0), 2.0)
    cost = theta**2 + 0.1 * omega**2 + 0.001 * u**2
    omega = omega + 0.05 * (3 * gravity / (2 * length) * math.sin(theta) + 3 * u / (mass * length**2))
    theta = theta + 0.05 * omega
    return np.array([math.cos(theta), math.sin(theta), omega]), cost


@pytest.mark.parametrize("constants", [{}, {"gravity": 4.0, "mass": 0.5, "length": 1.5}])
def test_a_hundred_steps_follow_the_equations(constants):
    generator = torch.Generator().manual_seed(0)
    state = Pendulum.initial_states(generator=generator, dtype=torch.float64)
    expected = state.numpy()
    for action in 3 * (2 * torch.rand(100, 1, generator=generator, dtype=torch.float64) - 1):
        state, cost = Pendulum(**constants).step(state, action)
        expected, expected_cost = oracle(expected, action.item(), **constants)
        np.testing.assert_allclose(state.numpy(), expected, rtol=1e-8, atol=1e-8)
        assert cost.item() == pytest.approx(expected_cost, rel=1e-9)


def test_derivatives_to_state_action_and_constants():
    def step(state, action, gravity, mass, length):
        return Pendulum(gravity, mass, length).step(state, action)

    state = Pendulum.initial_states(2, dtype=torch.float64).requires_grad_()
    action = torch.tensor([[1.0], [-0.5]], dtype=torch.float64, requires_grad=True)
    constants = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (10.0, 1.0, 1.0)]
    assert torch.autograd.gradcheck(step, (state, action, *constants))


def test_the_motor_cannot_lift_it_at_once():
    state = torch.tensor([0.0, 1.0, 0.0])
    assert Pendulum().step(state, torch.tensor([-2.0]))[0][2] > 0


def test_it_draws():
    ax = Mock()  # in place of Matplotlib's axes
    Pendulum().draw(torch.tensor([0.0, 1.0, 0.0]), ax, action=1.0)
    (xs, ys), _ = ax.plot.call_args_list[0]
    np.testing.assert_allclose([xs, ys], [[0, 1], [0, 0]], atol=1e-6)

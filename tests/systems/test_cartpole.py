"""The cartpole against its equations of motion, written again with numpy."""

import math
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from dcem.systems.cartpole import Cartpole


def oracle(state: np.ndarray, u: float, g=9.8, mc=1.0, mp=0.1, l=0.5, dt=0.05) -> tuple[np.ndarray, float]:  # noqa: E741
    x, v, cos, sin, omega = state
    theta = math.atan2(sin, cos)
    u = min(max(u, -100.0), 100.0)
    cost = 0.1 * x**2 + 1e-5 * u**2 - math.cos(theta)
    total = mc + mp
    c = (u + mp * l * omega**2 * math.sin(theta)) / total
    alpha = (g * math.sin(theta) - c * math.cos(theta)) / (l * (4 / 3 - mp * math.cos(theta) ** 2 / total))
    a = c - mp * l * alpha * math.cos(theta) / total
    x, theta = x + dt * v, theta + dt * omega
    v, omega = v + dt * a, omega + dt * alpha
    return np.array([x, v, math.cos(theta), math.sin(theta), omega]), cost


@pytest.mark.parametrize(
    "constants",
    [{}, {"gravity": 3.7, "cart_mass": 2.0, "pole_mass": 0.4, "half_length": 0.8, "dt": 0.01}],
)
def test_a_hundred_steps_follow_the_equations(constants):
    names = {"gravity": "g", "cart_mass": "mc", "pole_mass": "mp", "half_length": "l", "dt": "dt"}
    given = {names[key]: value for key, value in constants.items()}
    generator = torch.Generator().manual_seed(0)
    state = Cartpole.initial_states(generator=generator, dtype=torch.float64)
    actions = 120 * (2 * torch.rand(100, 1, generator=generator, dtype=torch.float64) - 1)
    expected = state.numpy()
    for action in actions:
        state, cost = Cartpole(**constants).step(state, action)
        expected, expected_cost = oracle(expected, action.item(), **given)
        np.testing.assert_allclose(state.numpy(), expected, rtol=1e-8, atol=1e-8)
        assert cost.item() == pytest.approx(expected_cost, rel=1e-9)


def test_upright_is_an_unstable_rest():
    still = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0])
    after, cost = Cartpole().step(still, torch.zeros(1))
    torch.testing.assert_close(after, still)
    assert cost == -1
    tilted = torch.tensor([0.0, 0.0, math.cos(0.1), math.sin(0.1), 0.0])
    assert Cartpole().step(tilted, torch.zeros(1))[0][4] > 0, "it falls away from upright"


def test_forces_beyond_the_box_are_clamped():
    state = Cartpole.initial_states(4)
    for a, b in ((150.0, 100.0), (-1e6, -100.0)):
        for ours, theirs in zip(
            Cartpole().step(state, torch.full((4, 1), a)),
            Cartpole().step(state, torch.full((4, 1), b)),
            strict=True,
        ):
            assert torch.equal(ours, theirs)


def test_derivatives_to_state_action_and_constants():
    def step(state, action, mass, length):
        return Cartpole(pole_mass=mass, half_length=length).step(state, action)

    state = Cartpole.initial_states(2, dtype=torch.float64).requires_grad_()
    action = torch.tensor([[30.0], [-50.0]], dtype=torch.float64, requires_grad=True)
    mass, length = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.1, 0.5))
    assert torch.autograd.gradcheck(step, (state, action, mass, length))


def test_constants_may_differ_from_row_to_row():
    masses = torch.tensor([0.1, 0.5])
    state, action = Cartpole.initial_states(2), torch.tensor([[10.0], [10.0]])
    together, _ = Cartpole(pole_mass=masses).step(state, action)
    for i in range(2):
        torch.testing.assert_close(
            together[i], Cartpole(pole_mass=float(masses[i])).step(state[i], action[i])[0]
        )


def test_initial_states_are_in_range_and_repeatable():
    states = Cartpole.initial_states(50, 20, generator=torch.Generator().manual_seed(0))
    x, v, cos, sin, omega = states.unbind(-1)
    assert states.shape == (50, 20, 5)
    for part, reach in ((x, 0.5), (v, 0.5), (omega, 1.0), (torch.atan2(sin, cos), math.pi)):
        assert part.abs().max() <= reach
        assert part.abs().max() > 0.99 * reach and part.mean().abs() < 0.1 * reach
    torch.testing.assert_close(cos.square() + sin.square(), torch.ones_like(cos))
    assert torch.equal(states, Cartpole.initial_states(50, 20, generator=torch.Generator().manual_seed(0)))


def test_it_draws():
    ax = Mock()  # in place of Matplotlib's axes
    Cartpole().draw(torch.tensor([0.5, 0.0, 0.0, 1.0, 0.0]), ax, action=50.0)
    (xs, ys), _ = ax.plot.call_args_list[0]
    np.testing.assert_allclose([xs, ys], [[0.5, 1.5], [0, 0]], atol=1e-6)

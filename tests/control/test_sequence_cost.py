"""Costs of action sequences, against sums by hand and against steps one after the other."""

import pytest
import torch

from dcem.control import rollout, sequence_cost
from dcem.systems.cartpole import Cartpole
from dcem.systems.pendulum import Pendulum


class Integrator:
    """x' = x + u, and a step costs x²."""

    def step(self, state, action):
        return state + action, state.square().sum(-1)


def test_a_sum_by_hand():
    state, actions = torch.tensor([2.0]), torch.tensor([[-1.0], [-1.0], [3.0]])
    assert rollout(Integrator(), state, actions) == 4 + 1 + 0
    assert rollout(Integrator(), state, actions, discount=0.5) == 4 + 0.5 + 0
    last = rollout(Integrator(), state, actions, discount=0.5, terminal_cost=lambda s: 10 * s[..., 0])
    assert last == 4.5 + 0.125 * 30


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_any_leading_dimensions(batch):
    state, actions = torch.randn(*batch, 3), torch.randn(*batch, 5, 1)
    total = rollout(Pendulum(), state, actions)
    assert total.shape == batch
    flat = [
        rollout(Pendulum(), s, a)
        for s, a in zip(state.reshape(-1, 3), actions.reshape(-1, 5, 1), strict=True)
    ]
    torch.testing.assert_close(total.reshape(-1), torch.stack(flat))


def test_every_candidate_starts_from_its_own_state():
    state, actions = torch.randn(2, 4, 3), torch.randn(2, 4, 7, 5, 1)
    total = sequence_cost(Pendulum(), state, actions)
    assert total.shape == (2, 4, 7)
    torch.testing.assert_close(total[1, 2, 3], rollout(Pendulum(), state[1, 2], actions[1, 2, 3]))


def test_a_model_with_a_way_of_its_own_is_asked_first():
    class Own(Integrator):
        def sequence_cost(self, state, actions, discount, terminal_cost):
            assert state.shape == (2, 1), "one state for all candidates"
            assert (discount, terminal_cost) == (0.9, None)
            return actions.sum((-2, -1))

    actions = torch.randn(2, 5, 3, 1)
    torch.testing.assert_close(sequence_cost(Own(), torch.zeros(2, 1), actions, 0.9), actions.sum((-2, -1)))


@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("terminal", [None, lambda s: s[..., 0].square() - s[..., 2]])
def test_the_cartpoles_own_way_is_its_steps(discount, terminal):
    """Values and gradients, forces beyond the box among them."""
    generator = torch.Generator().manual_seed(0)
    state = Cartpole.initial_states(3, generator=generator, dtype=torch.float64).requires_grad_()
    actions = 80 * torch.randn(3, 6, 20, 1, generator=generator, dtype=torch.float64)
    actions.requires_grad_()
    mass = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    model = Cartpole(pole_mass=mass)
    own = sequence_cost(model, state, actions, discount, terminal)
    states = state.unsqueeze(-2).expand(3, 6, 5)
    steps = rollout(model, states, actions, discount, terminal)
    torch.testing.assert_close(own, steps)
    weights = torch.rand(3, 6, generator=generator, dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad((own * weights).sum(), (actions, mass)),
        torch.autograd.grad((steps * weights).sum(), (actions, mass)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)

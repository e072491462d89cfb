"""Plans that keep a constraint at every step."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import dcem
from dcem.control import closed_loop, sequence_constraint
from dcem.systems import Cartpole

CENTRES = torch.tensor([[1.0, 0.3], [2.0, -0.6], [2.2, 0.9], [3.2, 0.1]])
RADII = torch.tensor([0.4, 0.5, 0.45, 0.45])


class PointMass:
    """State (x, y, ẋ, ẏ), action an acceleration; the goal is on the other side of four discs."""

    action_dim = 2

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        position, velocity = state.split(2, dim=-1)
        velocity = velocity + 0.1 * action
        position = position + 0.1 * velocity
        goal = torch.tensor([4.2, 0.0]).to(state)
        cost = (position - goal).square().sum(-1) + 0.1 * velocity.square().sum(-1)
        return torch.cat([position, velocity], dim=-1), cost


def depth(state: Tensor, action: Tensor) -> Tensor:
    """How deep inside each disc."""
    return RADII.to(state) - (state[..., None, :2] - CENTRES.to(state)).norm(dim=-1)


def rail(state: Tensor, action: Tensor) -> Tensor:
    """A rail of two metres, and no push above 60 newtons."""
    return torch.stack([state[..., 0].abs() - 1.0, action[..., 0].abs() - 60.0], dim=-1)


def on_the_course(count: int) -> Tensor:
    """Slow states between the discs, at least 0.1 from each."""
    found = torch.empty(0, 4)
    while len(found) < count:
        states = (torch.rand(4 * count, 4) - 0.5) * torch.tensor([5.0, 3.0, 0.6, 0.6])
        states = states + torch.tensor([2.0, 0.0, 0.0, 0.0])
        found = torch.cat([found, states[(depth(states, states) < -0.1).all(-1)]])
    return found[:count]


def violations(model, mpc: dcem.MPC, states: Tensor, constraint) -> tuple[int, dcem.Plan]:
    """In how many plans does a step break the constraint, followed one by one?"""
    with torch.no_grad():
        plan = mpc(states)
    broken = torch.zeros(len(states), dtype=torch.bool)
    for action in plan.actions.unbind(-2):
        states, _ = model.step(states, action)
        broken |= (constraint(states, action) > 0).any(-1)
    return int(broken.sum()), plan


SYSTEMS = {
    "cartpole": (Cartpole(), rail, Cartpole.initial_states, 100.0),
    "course": (PointMass(), depth, on_the_course, 2.0),
}


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("tau", [0, 0.1, 1.0])
@pytest.mark.parametrize("system", SYSTEMS)
def test_no_plan_breaks_the_constraint(system, tau, count):
    model, constraint, starts, limit = SYSTEMS[system]
    settings = {"low": -limit, "high": limit, "solver": dcem.DCEM(tau=tau)}
    states = starts(count)
    broken, plan = violations(
        model, dcem.MPC(model, 20, constraint=constraint, **settings), states, constraint
    )
    assert broken == 0 and (plan.violation == 0).all()
    free, plan = violations(model, dcem.MPC(model, 20, **settings), states, constraint)
    assert free > 0.1 * count and plan.violation is None, "there must be something to keep"


def test_a_closed_loop_round_obstacles():
    solver = dcem.DCEM(tau=0.1, n_iters=6)
    mpc = dcem.MPC(PointMass(), 20, -2.0, 2.0, solver=solver, constraint=depth)
    start = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.2, 0.0]])
    path = closed_loop(mpc, start, 60).states
    assert (depth(path, path) <= 0).all()
    assert (path[-1, :, :2] - torch.tensor([4.2, 0.0])).norm(dim=-1).max() < 0.5


def test_it_is_asked_about_every_action_and_the_state_it_leads_to():
    actions = torch.randn(3, 5, 4, 2)
    seen = []
    values = sequence_constraint(
        PointMass(), torch.zeros(3, 4), actions, lambda x, u: (seen.append((x, u)), x[..., 0])[1]
    )
    assert values.shape == (3, 5, 4)
    state = torch.zeros(3, 5, 4)
    for t, (x, u) in enumerate(seen):
        state, _ = PointMass().step(state, actions[..., t, :])
        assert torch.equal(x, state) and torch.equal(u, actions[..., t, :])
        assert torch.equal(values[..., t], state[..., 0])
    both = sequence_constraint(PointMass(), torch.zeros(3, 4), actions, depth)
    assert both.shape == (3, 5, 16)


def test_every_model_of_an_ensemble_keeps_it():
    light, heavy = Cartpole(), Cartpole(cart_mass=1.5)
    mpc = dcem.MPC([light, heavy], 10, -100.0, 100.0, constraint=rail, solver=dcem.DCEM(tau=0.1))
    states = Cartpole.initial_states(20)
    plan = mpc(states)
    assert (plan.violation == 0).all()
    for model in (light, heavy):
        assert (sequence_constraint(model, states, plan.actions.unsqueeze(1), rail) <= 0).all()


@pytest.mark.usefixtures("double")
def test_gradients_reach_what_the_constraint_is_made_of():
    noise = torch.randn(3, 2, 12, 6)

    def solve(width, mass):
        mpc = dcem.MPC(
            Cartpole(cart_mass=mass),
            6,
            -100.0,
            100.0,
            solver=dcem.DCEM(n_samples=12, n_elite=4, n_iters=3, tau=1.0),
            constraint=lambda x, u: x[..., 0].abs() - width,
        )
        states = torch.tensor([[0.1, 0.0, -1.0, 0.0, 0.0], [-0.2, 0.3, 0.8, 0.6, 0.0]])
        return mpc(states, noise=noise).actions

    width, mass = torch.tensor(0.4, requires_grad=True), torch.tensor(1.0, requires_grad=True)
    (gradient,) = torch.autograd.grad(solve(width, mass).square().sum(), width)
    assert gradient.abs() > 0
    assert gradcheck(solve, (width, mass), atol=1e-3)


def test_a_decoder_and_knots_keep_it_too():
    decoder = dcem.Decoder(2, 12, 1, -100.0, 100.0, hidden=(16,))
    for settings in ({"decoder": decoder}, {"knots": 4, "low": -100.0, "high": 100.0}):
        mpc = dcem.MPC(Cartpole(), 12, constraint=rail, solver=dcem.DCEM(tau=0.1), **settings)
        states = Cartpole.initial_states(8)
        plan = mpc(states)
        again = sequence_constraint(Cartpole(), states, plan.actions.unsqueeze(1), rail)
        assert torch.equal((again > 0).any(-1).squeeze(-1), plan.violation > 0)
        assert (plan.violation == 0).float().mean() > 0.5

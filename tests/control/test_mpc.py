"""The controller as a layer: batches, warm starts, what it minimises, and its gradients."""

import re

import pytest
import torch
from torch import nn

from dcem import DCEM, MPC, MPPI, Decoder, Gaussian, noise
from dcem.control import rollout
from dcem.systems.cartpole import Cartpole
from dcem.systems.pendulum import Pendulum

D = torch.float64
SOLVER = DCEM(n_samples=30, n_elite=5, n_iters=4, tau=1.0)
LATENT = DCEM(n_samples=30, n_elite=5, n_iters=4, tau=1.0, distribution=Gaussian(0.5, (-1.0, 1.0)))


class Integrator:
    """x' = x + gain · u in m dimensions; a step costs |x'|²."""

    def __init__(self, m: int = 1, gain: float | torch.Tensor = 1.0) -> None:
        self.action_dim, self.gain = m, gain

    def step(self, state, action):
        state = state + self.gain * action
        return state, state.square().sum(-1)


def pendulum(decoder: Decoder | None = None, solver=SOLVER, model=None, **settings) -> MPC:
    solver = LATENT if decoder is not None and solver is SOLVER else solver
    model = Pendulum() if model is None else model
    return MPC(model, 6, -2.0, 2.0, solver=solver, decoder=decoder, **settings).double()


def small_decoder(**changes) -> Decoder:
    torch.manual_seed(0)
    return Decoder(3, 6, 1, -2.0, 2.0, hidden=(8,), **changes).double()


def draw(*batch: int, n: int, n_iters: int = 4) -> torch.Tensor:
    return torch.randn(n_iters, *batch, 30, n, generator=torch.Generator().manual_seed(1), dtype=D)


@pytest.mark.parametrize("decoder", [None, small_decoder(), small_decoder(state_dim=3)])
@pytest.mark.parametrize("batch", [(4,), (2, 3)])
def test_a_batch_is_planned_as_one_at_a_time(decoder, batch):
    mpc = pendulum(decoder)
    states = Pendulum.initial_states(*batch, dtype=D)
    epsilon = draw(*batch, n=mpc.search_dim)
    together = mpc(states, noise=epsilon)
    assert together.action.shape == (*batch, 1) and together.actions.shape == (*batch, 6, 1)
    assert together.cost.shape == batch
    again = mpc(states, warm_start=together, noise=epsilon)
    for index in torch.cartesian_prod(*map(torch.arange, batch)).reshape(-1, len(batch)).tolist():
        row = tuple(index)
        alone = mpc(states[row], noise=epsilon[(slice(None), *row)])
        for name in ("action", "actions", "cost", "latent"):
            torch.testing.assert_close(getattr(together, name)[row], getattr(alone, name))
        warm = mpc(states[row], warm_start=alone, noise=epsilon[(slice(None), *row)])
        torch.testing.assert_close(again.actions[row], warm.actions)


def test_the_cost_is_that_of_the_actions():
    mpc = pendulum(discount=0.9, terminal_cost=lambda s: 5 * (1 - s[..., 0]))
    states = Pendulum.initial_states(3, dtype=D)
    plan = mpc(states)
    torch.testing.assert_close(plan.cost, rollout(Pendulum(), states, plan.actions, 0.9, mpc.terminal_cost))
    assert torch.equal(plan.action, plan.actions[:, 0])
    assert mpc(states, cost=False).cost is None


def test_discount_and_terminal_cost_change_the_plan():
    """One step of x' = x + u that costs nothing now: without a terminal cost there is nothing to do."""

    class Late:
        action_dim = 1

        def step(self, state, action):
            return state + action, 1e-3 * action.square().sum(-1)

    solver = DCEM(n_samples=200, n_elite=20, n_iters=15, tau=0.1)
    start = torch.tensor([0.5])
    lazy = MPC(Late(), 3, solver=solver)(start)
    assert lazy.actions.abs().max() < 0.1
    plan = MPC(Late(), 3, solver=solver, terminal_cost=lambda s: s.square().sum(-1))(start)
    assert plan.actions.sum().item() == pytest.approx(-0.5, abs=0.05)
    # Moving at once is worth it only as far as the discounted steps matter.
    greedy = MPC(Integrator(), 3, solver=solver, discount=1e-3)(start)
    assert greedy.actions[0].item() == pytest.approx(-0.5, abs=0.05)


def test_bounds_for_each_action():
    low, high = torch.tensor([-0.1, -2.0]), torch.tensor([0.2, 0.3])
    solver = DCEM(
        n_samples=100, n_elite=10, n_iters=8, tau=0, distribution=Gaussian(torch.tensor([0.2, 2.0]))
    )
    plan = MPC(Integrator(2), 4, low, high, solver=solver)(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
    assert ((low <= plan.actions) & (plan.actions <= high)).all()
    assert plan.action[0, 0].item() == pytest.approx(-0.1, abs=0.02)
    assert plan.action[1, 1].item() == pytest.approx(0.3, abs=0.02)


def test_a_warm_start_is_the_last_plan_moved_by_a_step():
    mpc = pendulum(solver=DCEM(n_samples=30, n_elite=5, n_iters=1, tau=1.0, distribution=Gaussian(1e-9)))
    last = mpc(Pendulum.initial_states(2, dtype=D))._replace(actions=torch.rand(2, 6, 1, dtype=D))
    expected = torch.cat([last.actions[:, 1:], last.actions[:, -1:]], dim=1)
    warm = mpc(Pendulum.initial_states(2, dtype=D), warm_start=last)
    torch.testing.assert_close(warm.actions, expected, atol=1e-6, rtol=0)
    fresh = mpc(Pendulum.initial_states(2, dtype=D), warm_start=last, fresh=torch.tensor([True, False]))
    torch.testing.assert_close(fresh.actions[0], torch.zeros(6, 1, dtype=D), atol=1e-6, rtol=0)
    torch.testing.assert_close(fresh.actions[1], expected[1], atol=1e-6, rtol=0)


def test_a_latent_warm_start_stays_where_it_is():
    narrow = DCEM(n_samples=30, n_elite=5, n_iters=1, distribution=Gaussian(1e-9, (-1.0, 1.0)))
    mpc = pendulum(small_decoder(), solver=narrow)
    last = mpc(Pendulum.initial_states(dtype=D))._replace(latent=torch.tensor([0.3, -0.2, 0.9], dtype=D))
    warm = mpc(Pendulum.initial_states(dtype=D), warm_start=last)
    torch.testing.assert_close(warm.latent, last.latent, atol=1e-6, rtol=0)


def test_without_gradients_no_graph_is_kept():
    decoder = small_decoder()
    mpc = pendulum(decoder)
    with torch.no_grad():
        plan = mpc(Pendulum.initial_states(2, dtype=D), trace=True)
    tensors = [plan.action, plan.actions, plan.cost, plan.latent, *(r.samples for r in plan.trace)]
    assert not any(t.requires_grad or t.grad_fn for t in tensors)
    assert mpc(Pendulum.initial_states(2, dtype=D)).cost.requires_grad


@pytest.mark.parametrize(
    "solver",
    [
        SOLVER,
        MPPI(n_samples=30, n_iters=4),
        DCEM(n_samples=30, n_elite=5, n_iters=4, tau=1.0, noise=noise.Colored(beta=2.0, horizon=6)),
        DCEM(n_samples=30, n_elite=5, n_iters=4, tau=1.0, keep_elites=3),
    ],
    ids=["dcem", "mppi", "colored", "keep_elites"],
)
def test_gradients_by_finite_differences(solver):
    """Of the planned action, with fixed noise, to a constant of the model and to the state."""
    epsilon = torch.stack(
        [
            solver.noise.draw((30, 6), torch.zeros(1, dtype=D), torch.Generator().manual_seed(t))
            for t in range(solver.n_iters)
        ]
    )

    def action(gravity, state):
        return pendulum(solver=solver, model=Pendulum(gravity=gravity))(state, noise=epsilon).action

    gravity = torch.tensor(10.0, dtype=D, requires_grad=True)
    state = torch.tensor([-0.7, 0.6, 0.3], dtype=D, requires_grad=True)
    assert torch.autograd.gradcheck(action, (gravity, state), eps=1e-7, atol=1e-4, rtol=1e-3)


def test_gradients_through_the_cartpole_by_finite_differences():
    epsilon = torch.randn(4, 30, 8, generator=torch.Generator().manual_seed(3), dtype=D)
    state = Cartpole.initial_states(generator=torch.Generator().manual_seed(0), dtype=D)
    # Truncated sampling: clamped samples have no derivative exactly at the wall.
    gaussian = Gaussian(30.0, boundary="truncate")
    solver = DCEM(n_samples=30, n_elite=5, n_iters=4, tau=1.0, distribution=gaussian)

    def action(mass, length):
        model = Cartpole(pole_mass=mass, half_length=length)
        return MPC(model, 8, -100.0, 100.0, solver=solver).double()(state, noise=epsilon).action

    mass, length = (torch.tensor(v, dtype=D, requires_grad=True) for v in (0.1, 0.5))
    assert torch.autograd.gradcheck(action, (mass, length), eps=1e-7, atol=1e-3, rtol=1e-3)


def test_gradients_reach_decoder_model_and_state():
    decoder = small_decoder()
    gravity = torch.tensor(10.0, dtype=D, requires_grad=True)
    state = torch.tensor([-0.7, 0.6, 0.3], dtype=D, requires_grad=True)
    plan = pendulum(decoder, model=Pendulum(gravity=gravity))(state)
    plan.action.sum().backward()
    for tensor in (gravity, state, *decoder.parameters()):
        assert tensor.grad is not None and tensor.grad.abs().sum() > 0


def test_a_networks_parameters_become_the_controllers():
    class Learned(nn.Module):
        action_dim = 1

        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 2)

        def step(self, state, action):
            state = self.net(torch.cat([state, action], -1))
            return state, state.square().sum(-1)

    mpc = MPC(Learned(), 3, solver=SOLVER)
    assert len(list(mpc.parameters())) == 2
    mpc(torch.zeros(4, 2)).cost.sum().backward()
    assert all(p.grad is not None for p in mpc.parameters())


def test_smooth_noise_makes_smooth_plans():
    def roughness(solver: DCEM) -> float:
        mpc = MPC(Cartpole(), 20, -100.0, 100.0, solver=solver)
        states = Cartpole.initial_states(20, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            actions = mpc(states, generator=torch.Generator().manual_seed(0)).actions
        return actions.diff(dim=-2).abs().mean().item()

    settings = {"n_samples": 100, "n_elite": 10, "n_iters": 3, "tau": 0, "distribution": Gaussian(50.0)}
    white = roughness(DCEM(**settings))
    assert roughness(DCEM(**settings, noise=noise.Colored(beta=3.0, horizon=20))) < 0.7 * white


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"horizon": 0}, "horizon must be a positive integer, got 0"),
        ({"discount": 0.0}, "discount must satisfy"),
        ({"low": 1.0}, "low < high"),
        ({"decoder": Decoder(2, 5, 1)}, "the decoder's horizon must be 3, got 5"),
        ({"action_dim": 2}, r"action_dim must be told.*got \[1, 2\]"),
    ],
)
def test_a_bad_argument_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        MPC(**{"model": Pendulum(), "horizon": 3, **arguments})


def test_a_plan_of_another_batch_or_horizon_is_no_warm_start():
    mpc, states = pendulum(), Pendulum.initial_states(3, dtype=D)
    others = mpc(states[:2]), MPC(Pendulum(), 5, -2.0, 2.0, solver=SOLVER).double()(states)
    for plan, shape in zip(others, [(2, 6), (3, 5)], strict=True):
        words = f"warm_start must be a plan whose latent has shape (3, 6), got {shape}"
        with pytest.raises(ValueError, match=re.escape(words)):
            mpc(states, warm_start=plan)

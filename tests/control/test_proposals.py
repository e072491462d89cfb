"""Candidates from a policy, a first mean for every row, and warm starts that keep their spread."""

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from dcem import DCEM, MPC, MPPI, Decoder, Gaussian
from dcem.backward import Checkpoint, Detach, Implicit, Prune, Truncate, Unroll
from dcem.control import PolicyProposals, rollout
from dcem.systems import Cartpole, Pendulum

D = torch.float64
H = 5
SOLVER = DCEM(n_samples=12, n_elite=4, n_iters=3, tau=0.8)
STATES = Pendulum.initial_states(3, generator=torch.Generator().manual_seed(0), dtype=D)
MODES = {type(m).__name__: m for m in (Unroll(), Checkpoint(), Truncate(2), Prune(0.5))}


class Policy(nn.Module):
    """Smooth, and inside the box."""

    def __init__(self, gain: float = 0.7) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([gain, -0.4], dtype=D))

    def forward(self, state):
        return 1.8 * torch.tanh(self.gain[0] * state[..., 1:2] + self.gain[1] * state[..., 2:3])


def controller(model=None, solver=SOLVER, **settings) -> MPC:
    return MPC(Pendulum() if model is None else model, H, -2.0, 2.0, solver=solver, **settings).double()


def noise_for(mpc: MPC, *batch: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    n_iters, n = mpc.solver.n_iters, mpc.solver.n_samples
    return torch.randn(n_iters, *batch, n, mpc.search_dim, generator=generator, dtype=D)


def test_a_function_of_the_state_is_tried_in_every_iteration():
    mpc = controller(proposals=lambda s: torch.full((3, 2, H, 1), 1.3, dtype=D))
    for record in mpc(STATES, trace=True).trace:
        assert record.samples.shape == (3, 14, H)
        assert (record.samples[:, -2:] == 1.3).all()


def test_what_leaves_the_box_is_moved_inside():
    mpc = controller(proposals=lambda s: torch.full((3, 2, H, 1), 9.0, dtype=D))
    assert (mpc(STATES, trace=True).trace[0].samples[:, -2:] == 2).all()


def test_a_policy_is_rolled_out_in_the_model():
    """Against a loop by hand; the first sequence without noise, the others with it."""
    policy = Policy()
    mpc = controller(proposals=PolicyProposals(policy, n=4, sigma=0.3).double())
    found = mpc.propose(STATES, torch.Generator().manual_seed(0))
    assert found.shape == (3, 4, H, 1)
    epsilon = torch.randn(3, 3, H, 1, generator=torch.Generator().manual_seed(0), dtype=D)
    epsilon = torch.cat([torch.zeros(3, 1, H, 1, dtype=D), epsilon], dim=1)
    for row in range(3):
        for i in range(4):
            state = STATES[row]
            for t in range(H):
                action = (policy(state) + 0.3 * epsilon[row, i, t]).clamp(-2, 2)
                torch.testing.assert_close(found[row, i, t], action)
                state, _ = Pendulum().step(state, action)


def test_noise_and_seed_fix_a_policys_noise_too():
    mpc = controller(proposals=PolicyProposals(Policy(), n=6, sigma=1.0), seed=3)
    epsilon = noise_for(mpc, 3)
    assert torch.equal(mpc(STATES, noise=epsilon).actions, mpc(STATES, noise=epsilon).actions)
    assert not torch.equal(mpc(STATES).actions, mpc(STATES).actions)
    mpc.eval()
    together = mpc(STATES)
    assert torch.equal(together.actions, mpc(STATES).actions)
    for row in range(3):
        torch.testing.assert_close(together.actions[row], mpc(STATES[row]).actions)
    again = [mpc(STATES, generator=torch.Generator().manual_seed(4)).actions for _ in range(2)]
    assert torch.equal(*again) and not torch.equal(again[0], together.actions)


@pytest.mark.parametrize("solver", [SOLVER, MPPI(n_samples=12, n_iters=3)], ids=["dcem", "mppi"])
@pytest.mark.parametrize("settings", [{}, {"cold_start": "proposal"}, {"warm_spread": 0.3}])
def test_a_batch_is_planned_as_one_at_a_time(settings, solver):
    mpc = controller(solver=solver, proposals=PolicyProposals(Policy(), n=3), **settings)
    epsilon = noise_for(mpc, 3)
    together = mpc(STATES, noise=epsilon)
    again = mpc(STATES, warm_start=together, fresh=torch.tensor([False, True, False]), noise=epsilon)
    for row in range(3):
        alone = mpc(STATES[row], noise=epsilon[:, row])
        torch.testing.assert_close(together.actions[row], alone.actions)
        torch.testing.assert_close(together.cost[row], alone.cost)
        last = None if row == 1 else alone
        torch.testing.assert_close(
            again.actions[row], mpc(STATES[row], warm_start=last, noise=epsilon[:, row]).actions
        )


@pytest.mark.parametrize("mode", ["Unroll", "Checkpoint"])
def test_gradients_by_finite_differences(mode):
    """Of plan and cost, to the policy, the value, the model and the state, with fixed noise."""
    epsilon = None

    def plan(gain, height, gravity, state):
        nonlocal epsilon
        proposals = PolicyProposals(lambda s: torch.tanh(gain * s[..., 2:3]), n=3, sigma=0.3)
        mpc = controller(
            Pendulum(gravity=gravity),
            value=lambda s: height * s[..., 0] - s[..., 2].square(),
            proposals=proposals,
            cold_start="proposal",
            discount=0.95,
            backward=MODES[mode],
        )
        epsilon = noise_for(mpc, 2) if epsilon is None else epsilon
        found = mpc(state, noise=epsilon)
        return found.actions, found.cost

    inputs = [torch.tensor(v, dtype=D, requires_grad=True) for v in (0.6, 3.0, 10.0)]
    assert gradcheck(plan, (*inputs, STATES[:2].clone().requires_grad_()), eps=1e-7, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_reach_policy_value_and_model_in_every_mode(mode):
    gravity = torch.tensor(10.0, dtype=D, requires_grad=True)
    value = nn.Linear(3, 1).double()
    mpc = controller(
        Pendulum(gravity=gravity),
        value=lambda s: value(s).squeeze(-1),
        proposals=PolicyProposals(Policy(), n=3),
        backward=MODES[mode],
    )
    mpc(STATES).actions.square().sum().backward()
    for tensor in (gravity, value.weight, *mpc.proposals.parameters()):
        assert tensor.grad is not None and tensor.grad.isfinite().all() and tensor.grad.abs().sum() > 0
    assert {id(p) for p in mpc.proposals.parameters()} <= {id(p) for p in mpc.parameters()}


@pytest.mark.parametrize("mode", [Detach(), Implicit(damping=1.0)], ids=["Detach", "Implicit"])
def test_modes_without_the_way_there_leave_the_policy_out_and_the_cost_in(mode):
    value = nn.Linear(3, 1).double()
    policy = Policy()
    mpc = controller(
        value=lambda s: value(s).squeeze(-1), proposals=PolicyProposals(policy, n=3), backward=mode
    )
    mpc(STATES).cost.sum().backward()
    assert value.weight.grad.abs().sum() > 0 and policy.gain.grad is None


@pytest.mark.parametrize("mode", MODES)
def test_latent_points_are_the_proposals_of_a_latent_search(mode):
    torch.manual_seed(0)
    decoder = Decoder(2, H, 1, -2.0, 2.0, hidden=(8,)).double()
    encoder = nn.Linear(3, 8).double()
    solver = DCEM(n_samples=12, n_elite=4, n_iters=3, distribution=Gaussian(0.5, (-1.0, 1.0)))
    mpc = controller(
        solver=solver,
        decoder=decoder,
        proposals=lambda s: torch.tanh(encoder(s)).unflatten(-1, (4, 2)),
        cold_start="proposal",
        backward=MODES[mode],
    )
    plan = mpc(STATES, trace=True)
    torch.testing.assert_close(plan.trace[0].samples[:, -4:], mpc.propose(STATES))
    plan.actions.square().sum().backward()
    for tensor in (*encoder.parameters(), *decoder.parameters()):
        assert tensor.grad is not None and tensor.grad.abs().sum() > 0


def test_a_good_policy_makes_a_poor_search_good():
    """A swing-up that 12 samples do not find."""
    weak = DCEM(n_samples=12, n_elite=4, n_iters=3)
    strong = DCEM(n_samples=400, n_elite=20, n_iters=10, tau=0)
    down = torch.tensor([-1.0, 0.0, 0.0], dtype=D)
    best = MPC(Pendulum(), 40, -2.0, 2.0, solver=strong).double()(down).actions

    def cost(proposals):
        mpc = MPC(Pendulum(), 40, -2.0, 2.0, solver=weak, proposals=proposals).double()
        return mpc(down, generator=torch.Generator().manual_seed(0)).cost

    poor, good = cost(None), cost(lambda s: best.unsqueeze(0))
    known = rollout(Pendulum(), down, best)
    assert good < poor - 0.5 * (poor - known)


def test_start_is_the_first_mean_of_cold_rows():
    narrow = DCEM(n_samples=12, n_elite=4, n_iters=1, distribution=Gaussian(1e-9))
    start = torch.linspace(-3, 3, 3 * H, dtype=D).reshape(3, H, 1)
    mpc = controller(solver=narrow)
    expected = start.clamp(-2, 2)
    torch.testing.assert_close(mpc(STATES, start=start).actions, expected, atol=1e-6, rtol=0)
    last = mpc(STATES)._replace(actions=torch.ones(3, H, 1, dtype=D))
    mixed = mpc(STATES, last, start=start, fresh=torch.tensor([True, False, True])).actions
    torch.testing.assert_close(mixed[[0, 2]], expected[[0, 2]], atol=1e-6, rtol=0)
    torch.testing.assert_close(mixed[1], torch.ones(H, 1, dtype=D), atol=1e-6, rtol=0)
    proposing = controller(solver=narrow, proposals=lambda s: start.unsqueeze(1), cold_start="proposal")
    torch.testing.assert_close(proposing(STATES).actions, expected, atol=1e-6, rtol=0)


def test_gradients_reach_the_start():
    start = torch.zeros(3, H, 1, dtype=D, requires_grad=True)
    controller()(STATES, start=start).actions.sum().backward()
    assert (start.grad.abs().sum((1, 2)) > 0).all()


def first_spread(mpc: MPC, **arguments) -> torch.Tensor:
    """(3, H): how far the first iteration's samples lie from their mean, for noise of one."""
    ones = torch.ones(mpc.solver.n_iters, 3, mpc.solver.n_samples, mpc.search_dim, dtype=D)
    up = mpc(STATES, noise=ones, trace=True, **arguments).trace[0].samples[:, 0]
    down = mpc(STATES, noise=-ones, trace=True, **arguments).trace[0].samples[:, 0]
    return (up - down) / 2


def test_a_warm_start_keeps_its_spread_moved_by_a_step():
    solver = DCEM(n_samples=12, n_elite=4, n_iters=3, distribution=Gaussian(0.5))
    mpc = controller(solver=solver, warm_spread=0.2)
    last = mpc(STATES)
    assert last.spread.shape == (3, H)
    spread = torch.tensor([9.0, 0.3, 0.01, 0.2, 0.4], dtype=D)
    last = last._replace(spread=spread.expand(3, H), actions=torch.zeros(3, H, 1, dtype=D))
    kept = first_spread(mpc, warm_start=last, fresh=torch.tensor([False, False, True]))
    # moved by a step, at least 0.2 · 0.5, and for the new last step all of the first
    torch.testing.assert_close(kept[0], torch.tensor([0.3, 0.1, 0.2, 0.4, 0.5], dtype=D))
    torch.testing.assert_close(kept[2], torch.full((H,), 0.5, dtype=D))
    plain = first_spread(controller(solver=solver), warm_start=last)
    torch.testing.assert_close(plain, torch.full((3, H), 0.5, dtype=D))


def test_a_latent_warm_start_keeps_its_spread_where_it_is():
    decoder = Decoder(3, H, 1, -2.0, 2.0, hidden=(8,)).double()
    solver = DCEM(n_samples=12, n_elite=4, n_iters=3, distribution=Gaussian(0.5, (-1.0, 1.0)))
    mpc = controller(solver=solver, decoder=decoder, warm_spread=0.2)
    spread = torch.tensor([0.3, 0.01, 0.2], dtype=D).expand(3, 3)
    last = mpc(STATES)._replace(spread=spread, latent=torch.zeros(3, 3, dtype=D))
    expected = torch.tensor([0.3, 0.1, 0.2], dtype=D).expand(3, 3)
    torch.testing.assert_close(first_spread(mpc, warm_start=last), expected)


@pytest.mark.parametrize("own", [True, False], ids=["sequence_cost", "steps"])
def test_discount_and_value_reach_models_with_a_way_of_their_own(own):
    """The cost of a plan is Σ γ^t c_t − γ^H V(x_H), whoever rolls it out."""

    class Steps:
        action_dim, step = 1, Cartpole().step

    model = Cartpole() if own else Steps()
    value = nn.Linear(5, 1).double()
    mpc = MPC(
        model, H, -100.0, 100.0, solver=SOLVER, discount=0.9, value=lambda s: value(s).squeeze(-1)
    ).double()
    state = Cartpole.initial_states(2, generator=torch.Generator().manual_seed(0), dtype=D)
    plan = mpc(state, noise=noise_for(mpc, 2))
    total, x = 0.0, state
    for t in range(H):
        x, cost = Cartpole().step(x, plan.actions[:, t])
        total = total + 0.9**t * cost
    torch.testing.assert_close(plan.cost, total - 0.9**H * value(x).squeeze(-1))
    assert torch.autograd.grad(plan.action.sum(), value.weight)[0].abs().sum() > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"proposals": 3}, "proposals must be callable, got int"),
        ({"cold_start": "proposal"}, "cold_start must be 'centre', or 'proposal' where there are"),
        ({"cold_start": "warm"}, "cold_start must be .*, got 'warm'"),
        ({"warm_spread": 1.5}, r"warm_spread must lie in \[0, 1\], got 1.5"),
        (
            {"decoder": Decoder(2, H, 1), "proposals": PolicyProposals(Policy())},
            "proposals must be latent points where there is a decoder",
        ),
    ],
)
def test_a_bad_argument_is_named(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        MPC(Pendulum(), H, **arguments)


def test_shapes_are_named():
    with pytest.raises(ValueError, match=r"proposals must return shape \(3, P, 5, 1\), got \(3, 2, 4, 1\)"):
        controller(proposals=lambda s: torch.zeros(3, 2, 4, 1, dtype=D))(STATES)
    with pytest.raises(ValueError, match=r"start must have shape \(3, 5, 1\), got \(3, 5\)"):
        controller()(STATES, start=torch.zeros(3, 5))
    with pytest.raises(ValueError, match=r"policy must return actions of shape \(3, 24, 1\), got \(3, 24\)"):
        controller(proposals=PolicyProposals(lambda s: s[..., 0]))(STATES)
    with pytest.raises(ValueError, match="PolicyProposals: n must be a positive integer, got 0"):
        PolicyProposals(Policy(), n=0)

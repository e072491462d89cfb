"""Sequences by knots: interpolation against formulas written out, and plans that are searched by them."""

import pytest
import torch
from torch.autograd import gradcheck

from dcem import DCEM, MPC, Decoder, Gaussian, noise
from dcem.control import Knots, PolicyProposals, rollout
from dcem.systems import Cartpole, Pendulum

D = torch.float64
SOLVER = DCEM(n_samples=30, n_elite=5, n_iters=4, tau=1.0)


def interpolated(values: list[float], place: float, kind: str) -> float:
    """Between knots at 0, 1, …, by the textbook's formula for one number."""
    i = min(int(place), len(values) - 2)
    s = place - i
    if kind == "linear":
        return (1 - s) * values[i] + s * values[i + 1]

    def slope(j: int) -> float:
        before, after = max(j - 1, 0), min(j + 1, len(values) - 1)
        return (values[after] - values[before]) / (after - before)

    return (
        (2 * s**3 - 3 * s**2 + 1) * values[i]
        + (s**3 - 2 * s**2 + s) * slope(i)
        + (3 * s**2 - 2 * s**3) * values[i + 1]
        + (s**3 - s**2) * slope(i + 1)
    )


@pytest.mark.parametrize("kind", ["linear", "cubic"])
@pytest.mark.parametrize(("count", "horizon"), [(2, 2), (2, 7), (4, 10), (5, 12), (6, 6)])
def test_interpolation_by_hand(kind, count, horizon):
    knots = torch.randn(3, count, 2, dtype=D)
    found = Knots(count, kind).actions(knots, horizon)
    assert found.shape == (3, horizon, 2)
    for t in range(horizon):
        place = t * (count - 1) / (horizon - 1)
        for row in range(3):
            for j in range(2):
                expected = interpolated(knots[row, :, j].tolist(), place, kind)
                assert found[row, t, j].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", ["linear", "cubic"])
def test_as_many_knots_as_steps_are_the_actions(kind):
    actions = torch.randn(4, 6, 2, dtype=D)
    torch.testing.assert_close(Knots(6, kind).actions(actions, 6), actions)
    torch.testing.assert_close(Knots(6, kind).inverse(6) @ actions, actions)
    moved = torch.cat([actions[:, 1:], actions[:, -1:]], dim=1)
    torch.testing.assert_close(Knots(6, kind).later(6) @ actions, moved)


@pytest.mark.parametrize("kind", ["linear", "cubic"])
def test_the_inverse_finds_the_knots_that_made_the_actions(kind):
    knots = torch.randn(4, 3, 2, dtype=D)
    torch.testing.assert_close(Knots(3, kind).inverse(10) @ Knots(3, kind).actions(knots, 10), knots)


@pytest.mark.parametrize("kind", ["linear", "cubic"])
def test_a_step_later_the_knots_lie_on_the_same_curve(kind):
    values = torch.randn(4, 1, dtype=D)
    later = Knots(4, kind).later(10) @ values  # knots at 0, 3, 6, 9
    for i, time in enumerate((1, 4, 7, 9)):
        expected = interpolated(values[:, 0].tolist(), time / 3, kind)
        assert later[i].item() == pytest.approx(expected, abs=1e-12)


def controller(knots, horizon: int = 9, solver=SOLVER, **settings) -> MPC:
    return MPC(Pendulum(), horizon, -2.0, 2.0, solver=solver, knots=knots, **settings).double()


def states(*batch: int) -> torch.Tensor:
    return Pendulum.initial_states(*batch, generator=torch.Generator().manual_seed(0), dtype=D)


@pytest.mark.parametrize("knots", [3, Knots(4, "cubic")], ids=["linear", "cubic"])
def test_the_search_is_over_knots_and_a_batch_equals_a_loop(knots):
    mpc = controller(knots, proposals=PolicyProposals(lambda s: -s[..., 2:], n=3), warm_spread=0.5)
    count = mpc.knots.count
    assert mpc.search_dim == count
    epsilon = torch.randn(4, 3, 30, count, dtype=D)
    together = mpc(states(3), noise=epsilon)
    assert together.actions.shape == (3, 9, 1) and together.latent.shape == (3, count)
    torch.testing.assert_close(together.cost, rollout(Pendulum(), states(3), together.actions))
    again = mpc(states(3), together, noise=epsilon)
    for row in range(3):
        alone = mpc(states(3)[row], noise=epsilon[:, row])
        torch.testing.assert_close(together.actions[row], alone.actions)
        warm = mpc(states(3)[row], alone, noise=epsilon[:, row])
        torch.testing.assert_close(again.actions[row], warm.actions)


@pytest.mark.parametrize("kind", ["linear", "cubic"])
def test_bounds_hold_between_knots(kind):
    """Knots at the corners: cubic pieces would leave the box."""
    corners = torch.tensor([-2.0, 2.0, 2.0, -2.0], dtype=D)
    outside = Knots(4, kind).actions(corners.unsqueeze(-1), 9).abs().max() > 2
    assert outside == (kind == "cubic")
    mpc = controller(Knots(4, kind))
    assert mpc.decode(corners, None).abs().max() == 2
    wide = controller(Knots(4, kind), solver=DCEM(distribution=Gaussian(9.0)))
    assert wide(states(5)).actions.abs().max() <= 2


def test_a_warm_start_moves_in_time():
    narrow = DCEM(n_samples=30, n_elite=5, n_iters=1, distribution=Gaussian(1e-9))
    mpc = controller(3, solver=narrow)
    ramp = torch.linspace(-2, 2, 9, dtype=D).reshape(1, 9, 1)
    first = mpc(states(1), start=ramp)
    torch.testing.assert_close(first.actions, ramp, atol=1e-6, rtol=0)
    warm = mpc(states(1), first).actions
    expected = Knots(3).actions(torch.tensor([[-1.5], [0.5], [2.0]], dtype=D), 9)
    torch.testing.assert_close(warm[0], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["linear", "cubic"])
def test_gradients_by_finite_differences(kind):
    epsilon = torch.randn(4, 30, 3, dtype=D)
    solver = DCEM(
        n_samples=30, n_elite=5, n_iters=4, tau=1.0, distribution=Gaussian(0.5, boundary="truncate")
    )

    def plan(gravity, state):
        mpc = MPC(Pendulum(gravity=gravity), 7, -2.0, 2.0, solver=solver, knots=Knots(3, kind)).double()
        found = mpc(state, noise=epsilon)
        return found.actions, found.cost

    gravity = torch.tensor(10.0, dtype=D, requires_grad=True)
    state = torch.tensor([-0.7, 0.6, 0.3], dtype=D, requires_grad=True)
    assert gradcheck(plan, (gravity, state), eps=1e-7, atol=1e-4, rtol=1e-3)


def test_few_knots_search_better_where_samples_are_few():
    """A swing of the pendulum over forty steps, with 200 trajectories."""

    def cost(knots):
        solver = DCEM(n_samples=40, n_elite=5, n_iters=5, tau=0)
        mpc = MPC(Pendulum(), 40, -2.0, 2.0, solver=solver, knots=knots)
        start = Pendulum.initial_states(50, generator=torch.Generator().manual_seed(0))
        return mpc(start, generator=torch.Generator().manual_seed(1)).cost.mean()

    assert cost(8) < cost(None) and cost(Knots(8, "cubic")) < cost(None)


def test_colored_noise_goes_along_the_knots():
    solver = DCEM(n_samples=30, n_elite=5, n_iters=2, noise=noise.Colored(beta=2.0, horizon=5))
    mpc = MPC(Cartpole(), 20, -100.0, 100.0, solver=solver, knots=5)
    assert mpc(Cartpole.initial_states(2)).actions.shape == (2, 20, 1)


@pytest.mark.parametrize(
    ("knots", "message"),
    [
        (1, "Knots: count must be an integer of at least 2, got 1"),
        (10, "knots must be Knots, or a number of at most horizon = 9, got"),
        ("three", "knots must be Knots"),
    ],
)
def test_a_bad_number_is_named(knots, message):
    with pytest.raises(ValueError, match=message):
        controller(knots)
    with pytest.raises(ValueError, match="knots must be left out where there is a decoder"):
        controller(3, decoder=Decoder(2, 9, 1))
    with pytest.raises(ValueError, match="kind must be 'linear' or 'cubic', got 'step'"):
        Knots(3, "step")

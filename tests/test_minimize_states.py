"""Going on from a state: with the same objective, with another one, and with settings that do not fit."""

import pytest
import torch
from torch import Tensor

import dcem
from dcem.backward import Truncate


def bowl(centre: float):
    return lambda x: (x - centre).square().sum(-1)


def test_the_best_point_is_judged_by_the_new_objective():
    solver = dcem.DCEM(returns="best", n_iters=5)
    first = dcem.minimize(bowl(0.0), solver, torch.zeros(2))
    second = dcem.minimize(bowl(0.3), solver, first.state)
    assert (second.x - 0.3).norm() < (first.x - 0.3).norm()


def test_the_best_point_is_not_lost_with_the_same_objective():
    solver = dcem.DCEM(returns="best", n_iters=5)
    first = dcem.minimize(bowl(0.2), solver, torch.zeros(2))
    again = dcem.minimize(bowl(0.2), dcem.DCEM(returns="best", n_iters=1, n_samples=10), first.state)
    assert again.cost <= first.cost


def test_rows_that_had_stopped_move_again():
    solver = dcem.DCEM(stop_below=0.05, n_iters=50)
    first = dcem.minimize(bowl(0.0), solver, torch.zeros(3, 2))
    assert not first.state.moving.any()
    second = dcem.minimize(bowl(0.02), solver, first.state)
    assert not torch.equal(second.x, first.x)


def test_a_state_of_means_goes_on_to_the_best():
    first = dcem.minimize(bowl(0.2), dcem.DCEM(), torch.zeros(2))
    second = dcem.minimize(bowl(0.2), dcem.DCEM(returns="best"), first.state)
    assert second.cost <= first.cost


@pytest.mark.parametrize(("before", "after"), [(0, 3), (3, 0), (3, 5), (5, 3)])
def test_any_number_of_kept_elites_goes_on(before, after):
    first = dcem.minimize(bowl(0.2), dcem.DCEM(keep_elites=before), torch.zeros(4, 2))
    second = dcem.minimize(bowl(0.2), dcem.DCEM(keep_elites=after), first.state)
    assert (second.x - 0.2).abs().max() < 0.05


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (dcem.DCEM(), dcem.GradientDescent(), "must be a state of GradientDescent"),
        (dcem.GradientDescent(), dcem.DCEM(), "must be a state of DCEM"),
        (dcem.DCEM(), dcem.DCEM(distribution=dcem.FullGaussian()), "must be a state of FullGaussian"),
        (dcem.GradientDescent(n_samples=3), dcem.GradientDescent(), "n_samples = 1 points, got one of 3"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(first, second, expected):
    state = dcem.minimize(bowl(0.2), first, torch.zeros(2)).state
    with pytest.raises(ValueError, match=expected):
        dcem.minimize(bowl(0.2), second, state)


def test_dcem_and_mppi_share_their_states():
    state = dcem.minimize(bowl(0.2), dcem.DCEM(), torch.zeros(2)).state
    assert (dcem.minimize(bowl(0.2), dcem.MPPI(), state).x - 0.2).abs().max() < 0.1


def test_a_warm_start_follows_an_objective_that_trains():
    """The first use of a state: a few iterations a step, while the objective moves."""
    theta = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.Adam([theta], lr=0.05)
    solver = dcem.DCEM(n_iters=3, sigma_min=0.05)
    start: object = torch.zeros(2)
    for _ in range(60):
        sol = dcem.minimize(lambda x: (x - theta).square().sum(-1), solver, start, backward=Truncate(3))
        loss = (sol.x - 1.0).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        start = sol.state._replace(phi=type(sol.state.phi)(*(part.detach() for part in sol.state.phi)))
    assert (theta - 1).abs().max() < 0.2


def test_a_state_is_searched_in_full_precision_under_autocast():
    state = dcem.minimize(bowl(0.2), dcem.DCEM(distribution=dcem.FullGaussian()), torch.zeros(3)).state
    seen = []

    def f(x: Tensor) -> Tensor:
        seen.append((x @ torch.eye(3)).dtype)
        return bowl(0.2)(x)

    with torch.autocast("cpu", torch.bfloat16):
        sol = dcem.minimize(f, dcem.DCEM(distribution=dcem.FullGaussian()), state)
    assert sol.x.dtype == torch.float32 and set(seen) == {torch.bfloat16}
    assert torch.equal(sol.state.phi.mean, sol.state.phi.mean.bfloat16().float()) is False


def test_a_row_that_has_stopped_keeps_its_elites_for_a_restart():
    """They take part in the first iteration of the next search, which must not depend on the neighbours."""
    solver = dcem.DCEM(
        n_samples=20, n_elite=4, n_iters=12, tau=0, keep_elites=3, stop_below=0.05, smoothing=0.3
    )
    x0 = torch.tensor([[0.1, 0.1], [40.0, -40.0]], dtype=torch.float64)
    noise = torch.randn(12, 2, 20, 2, dtype=torch.float64)

    def twice(rows):
        first = dcem.minimize(bowl(0.0), solver, x0[rows], noise=noise[:, rows])
        return dcem.minimize(bowl(0.0), solver, first.state, noise=noise[:, rows].flip(0)).x

    together, alone = twice([0, 1]), twice([0])
    assert torch.equal(together[0], alone[0])

"""What the sampling solvers share: early stopping, and gradients to the settings."""

import pytest
import torch

from dcem import DCEM, MPPI, FullGaussian, Gaussian, minimize
from dcem.solvers.sampling import SamplingSolver
from dcem.solvers.schedule import at
from problems import sphere

pytestmark = pytest.mark.usefixtures("double")
THETA = torch.tensor([[0.0, 0.0], [2.0, -1.0], [0.3, 0.1]], dtype=torch.float64)


def rows(x):
    """A different minimiser for every row of x (3, N, 2)."""
    return sphere(x, THETA[:, None])


@pytest.mark.parametrize("returns", ["mean", "best"])
@pytest.mark.parametrize("distribution", [Gaussian(), FullGaussian()], ids=str)
@pytest.mark.parametrize("family", [DCEM, MPPI])
def test_a_row_that_stops_early_never_changes_another(returns, distribution, family):
    noise = torch.randn(30, 3, 30, 2)
    solver = family(
        n_samples=30, n_iters=30, stop_below=0.02, returns=returns, distribution=distribution, smoothing=0.2
    )
    together = minimize(rows, solver, torch.zeros(3, 2), noise=noise, trace=True)
    lengths = set()
    for i in range(3):
        alone = minimize(
            lambda x, i=i: sphere(x, THETA[i]), solver, torch.zeros(2), noise=noise[:, i], trace=True
        )
        lengths.add(len(alone.trace))
        assert torch.allclose(together.x[i], alone.x, atol=1e-6)
    assert max(lengths) == len(together.trace)
    if family is DCEM:
        assert len(lengths) > 1 and max(lengths) < 30, "the rows must stop at different times"


def test_a_stopped_row_keeps_its_distribution():
    noise = torch.randn(30, 3, 30, 2)
    sol = minimize(
        rows, DCEM(n_samples=30, n_iters=30, stop_below=0.05), torch.zeros(3, 2), noise=noise, trace=True
    )
    means = torch.stack([r.mean for r in sol.trace])
    moved = means.diff(dim=0).abs().amax(-1)
    for i in range(3):
        small = (moved[:, i] < 0.05).nonzero()
        if len(small):
            first = int(small[0])
            assert (moved[first + 1 :, i] == 0).all()


def test_stopping_is_off_by_default_and_never_early_at_zero():
    for stop_below in (None, 0.0):
        sol = minimize(
            rows,
            DCEM(n_samples=10, n_elite=2, n_iters=7, stop_below=stop_below),
            torch.zeros(3, 2),
            trace=True,
        )
        assert len(sol.trace) == 7


def test_gradients_pass_through_an_early_stop():
    theta = THETA.clone().requires_grad_()
    noise = torch.randn(30, 3, 30, 2)
    solver = DCEM(n_samples=30, n_iters=30, stop_below=0.02)
    x = minimize(lambda x: sphere(x, theta[:, None]), solver, torch.zeros(3, 2), noise=noise).x
    (gradient,) = torch.autograd.grad(x.sum(), theta)
    assert gradient.isfinite().all() and (gradient.abs() > 0.1).all()


@pytest.mark.parametrize("estimator", ["rank-mu", "likelihood"])
@pytest.mark.parametrize("family", [Gaussian, FullGaussian])
def test_settings_can_be_learned(family, estimator):
    """gradcheck with respect to sigma, tau, the smoothing, x0 and the objective's parameters, per row."""
    noise = torch.randn(2, 2, 6, 2)

    def solve(sigma, tau, smoothing, x0, theta):
        solver = DCEM(
            n_samples=6,
            n_elite=2.5,
            n_iters=2,
            tau=tau,
            smoothing=smoothing,
            distribution=family(sigma=sigma, estimator=estimator),
        )
        return minimize(lambda x: sphere(x, theta), solver, x0, noise=noise).x

    leaves = [
        torch.tensor([0.8, 1.2]),
        torch.tensor([0.5, 1.5]),
        torch.tensor([0.1, 0.4]),
        torch.randn(2, 2),
        torch.randn(2),
    ]
    inputs = [v.requires_grad_() for v in leaves]
    assert torch.autograd.gradcheck(solve, inputs)
    assert torch.autograd.gradgradcheck(solve, inputs)


def test_the_number_of_elites_can_be_learned():
    noise = torch.randn(2, 8, 2)
    k = torch.tensor(2.5, requires_grad=True)

    def solve(k):
        return minimize(
            lambda x: sphere(x, THETA[1]),
            DCEM(n_samples=8, n_elite=k, n_iters=2, tau=1.0),
            torch.zeros(2),
            noise=noise,
        ).x

    assert torch.autograd.gradcheck(solve, (k,))


def test_bounds_can_be_learned():
    noise = torch.randn(2, 8, 2)

    def solve(low, high):
        distribution = Gaussian(bounds=(low, high), boundary="truncate")
        solver = DCEM(n_samples=8, n_elite=3, n_iters=2, tau=1.0, distribution=distribution)
        return minimize(lambda x: sphere(x, THETA[1]), solver, torch.zeros(2), noise=noise).x

    low = torch.tensor([-1.0, -0.7], requires_grad=True)
    high = torch.tensor([0.6, 1.0], requires_grad=True)
    assert torch.autograd.gradcheck(solve, (low, high))


def test_schedule_values():
    assert at(0.5, 3) == 0.5
    assert at([1.0, 2.0], 1) == 2.0 and at(range(5), 3) == 3
    assert at(lambda t: t / 2, 3) == 1.5
    tensor = torch.ones(2)
    assert at(tensor, 1) is tensor


def test_a_new_solver_must_say_how_it_weights():
    with pytest.raises(NotImplementedError):
        minimize(rows, SamplingSolver(), torch.zeros(3, 2))
    with pytest.raises(NotImplementedError):
        SamplingSolver().slope(torch.ones(2), 0)

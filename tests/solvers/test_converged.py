"""A search that has converged neither moves on nor spoils its gradient, in any precision."""

import pytest
import torch
from torch import Tensor

import dcem

DTYPES = [torch.float32, torch.float64]
COUPLED = torch.tensor([[3.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]], dtype=torch.float64)


def jacobian(answer, theta: Tensor) -> Tensor:
    x = answer(theta)
    rows = [torch.autograd.grad(x[i], theta, retain_graph=True)[0] for i in range(len(x))]
    return torch.stack(rows)


ESTIMATORS = ["rank-mu", "likelihood"]


def solve(f, x0: Tensor, tau: float, n_iters: int, full: bool, estimator: str, **settings) -> Tensor:
    distribution = (dcem.FullGaussian if full else dcem.Gaussian)(estimator=estimator)
    solver = dcem.DCEM(n_iters=n_iters, tau=tau, distribution=distribution, **settings)
    return dcem.minimize(f, solver, x0, generator=torch.Generator().manual_seed(0), cost=False).x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("tau", [1.0, 0.3, 0.1, 0.01])
def test_the_jacobian_of_a_quadratic_is_the_identity_however_long_the_search(tau, estimator, full, dtype):
    if full and estimator == "likelihood" and tau == 0.01:
        pytest.skip("a full covariance of 10 elites collapses before the mean arrives")
    theta = torch.linspace(-0.5, 0.7, 5, dtype=dtype, requires_grad=True)
    for n_iters in (30, 60, 200):
        j = jacobian(
            lambda t, n=n_iters: solve(
                lambda x: (x - t).square().sum(-1), torch.zeros(5, dtype=dtype), tau, n, full, estimator
            ),
            theta,
        )
        assert (j - torch.eye(5)).norm() <= 0.05, n_iters


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("tau", [1.0, 0.1, 0.01])
def test_a_minimum_that_is_not_zero_does_not_spoil_it(tau, estimator, full, dtype):
    """There, values differ by rounding long before the samples do."""
    matrix = COUPLED.to(dtype)
    theta = torch.tensor([0.5, -0.2, 0.3], dtype=dtype, requires_grad=True)

    def answer(t: Tensor, n_iters: int) -> Tensor:
        def f(x: Tensor) -> Tensor:
            return ((x @ matrix) * x).sum(-1) / 2 - x @ t

        return solve(f, torch.zeros(3, dtype=dtype), tau, n_iters, full, estimator, n_samples=400, n_elite=60)

    for n_iters in (40, 100):
        j = jacobian(lambda t, n=n_iters: answer(t, n), theta)
        assert (j - torch.linalg.inv(matrix)).norm() <= 0.05, n_iters


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_the_spread_stays_above_what_the_dtype_resolves(offset, dtype):
    target = offset + torch.tensor([0.3, -0.2], dtype=dtype)
    solver = dcem.DCEM(n_iters=300, tau=0.1)
    sol = dcem.minimize(lambda x: (x - target).square().sum(-1), solver, target.round())
    eps = torch.finfo(dtype).eps
    assert (sol.state.phi.sigma >= 0.99 * eps ** (2 / 3)).all()
    assert (sol.state.phi.sigma >= 60 * eps * target.abs()).all()
    assert (sol.x - target).abs().max() <= 100 * eps ** (2 / 3) + 1000 * eps * offset


def test_the_floor_follows_the_first_spread():
    f = lambda x: (1e-6 * (x - 3e5)).square().sum(-1)  # noqa: E731
    distribution = dcem.Gaussian(sigma=1e6)
    sol = dcem.minimize(f, dcem.DCEM(n_iters=300, tau=0.1, distribution=distribution), torch.zeros(2))
    assert 1 < sol.state.phi.sigma.min() < 100


def test_a_low_temperature_has_the_gradient_of_a_warmer_one_and_its_own_answer():
    theta = torch.tensor([0.4, -0.3], dtype=torch.float64, requires_grad=True)
    noise = torch.randn(4, 100, 2, dtype=torch.float64)

    def answer(tau: float) -> Tensor:
        solver = dcem.DCEM(n_iters=4, tau=tau)
        return dcem.minimize(
            lambda x: (x - theta).square().sum(-1), solver, torch.zeros(2).double(), noise=noise
        ).x

    with torch.no_grad():
        exact = answer(1e-4)
    assert torch.equal(answer(1e-4), exact)
    (cold,) = torch.autograd.grad(answer(1e-4).sum(), theta)
    assert 0.1 < cold.norm() < 10  # its own derivative is zero nearly everywhere


@pytest.mark.parametrize("kind", [dcem.DCEM, dcem.CMAES])
def test_low_temperatures_share_the_second_derivative_of_a_warmer_one(kind):
    v, c = torch.randn(2, 20, dtype=torch.float64)

    def second(tau: float) -> Tensor:
        solver = kind(n_samples=20, tau=tau)
        return torch.autograd.functional.hessian(lambda v: solver.weights(v, 0) @ c, v)

    cold, colder = second(1e-4), second(1e-5)
    assert cold.abs().max() > 0.1 and torch.allclose(cold, colder)


@pytest.mark.parametrize("tau", [0.0, torch.tensor(0.001)])
def test_hard_and_learned_temperatures_go_through(tau):
    theta = torch.tensor([0.4, -0.3], requires_grad=True)
    x = dcem.minimize(lambda x: (x - theta).square().sum(-1), dcem.DCEM(tau=tau), torch.zeros(2)).x
    if x.requires_grad:
        assert torch.autograd.grad(x.sum(), theta)[0].isfinite().all()


class Boltzmann(dcem.DCEM):
    """Weights of its own, which know nothing of rounding."""

    def weights(self, values: Tensor, t: int) -> Tensor:
        return (-values / values.detach().std(-1, keepdim=True)).softmax(-1)


@pytest.mark.parametrize("kind", [dcem.DCEM, Boltzmann, dcem.MPPI, dcem.CMAES])
@pytest.mark.parametrize("size", [1.0, 1e-12])
def test_values_that_differ_by_rounding_pass_no_gradient_whatever_makes_weights_of_them(kind, size):
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    settings = {} if kind is dcem.MPPI else {"tau": 0.3}
    solver = kind(n_iters=1, n_samples=20, **settings)
    generator = torch.Generator().manual_seed(0)
    x0 = torch.zeros(3, dtype=torch.float64)
    x = dcem.minimize(lambda x: 1e3 + size * (x - theta).square().sum(-1), solver, x0, generator=generator).x
    (gradient,) = torch.autograd.grad(x.sum(), theta)
    assert (gradient == 0).all() == (size < 1)

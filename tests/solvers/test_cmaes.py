"""CMA-ES: against the textbook in NumPy, its soft ranks, its limits and settings."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from dcem import CMAES, DCEM, FullGaussian, Gaussian, minimize
from dcem.backward import Checkpoint, Prune, Truncate, Unroll
from problems import MULTIMODAL, SMOOTH, sphere

pytestmark = pytest.mark.usefixtures("double")
TARGET = torch.tensor([0.4, -0.3, 0.1], dtype=torch.float64)


def f(x: Tensor) -> Tensor:
    return (torch.tensor([1.0, 10.0, 100.0]) * (x - TARGET).square()).sum(-1) + 0.3 * torch.sin(5 * x).sum(-1)


def textbook(values_of, mean, sigma, noise, separable: bool) -> tuple[np.ndarray, np.ndarray]:
    """Hansen's tutorial, for one row: step size and covariance apart, with negative weights.

    The step-size path is whitened by the Cholesky factor; its rate and the condition h are those of pycma.
    Returns the last mean and the covariance of the samples.
    """
    n, N = len(mean), noise.shape[1]
    w = math.log((N + 1) / 2) - np.log(np.arange(1, N + 1))
    k = int((w > 0).sum())
    mu, mu_worse = (part.sum() ** 2 / (part**2).sum() for part in (w[:k], w[k:]))
    cs = min(0.5, (mu + 2) / (n + mu + 3))
    ds = 1 + cs + 2 * max(0, math.sqrt((mu - 1) / (n + 1)) - 1)
    cc = (4 + mu / n) / (n + 4 + 2 * mu / n)
    c1 = 2 / ((n + 1.3) ** 2 + mu)
    cmu = 2 * (mu - 2 + 1 / mu + 0.25) / ((n + 2) ** 2 + mu)
    c1, cmu = (c1 * (n + 2) / 3, cmu * (n + 2) / 3) if separable else (c1, cmu)
    cmu = min(cmu, 1 - c1)
    alpha = min(1 + c1 / cmu, 1 + 2 * mu_worse / (mu + 2), (1 - c1 - cmu) / (n * cmu))
    w = np.where(w > 0, w / w[:k].sum(), -alpha * w / w[w < 0].sum())
    chi = math.sqrt(2) * math.gamma((n + 1) / 2) / math.gamma(n / 2)
    C, ps, pc = np.eye(n), np.zeros(n), np.zeros(n)
    for t, z in enumerate(noise, start=1):
        A = np.linalg.cholesky(C)
        y = z @ A.T
        y = y[np.argsort(values_of(mean + sigma * y))]
        step = w[:k] @ y[:k]
        mean = mean + sigma * step
        ps = (1 - cs) * ps + math.sqrt(cs * (2 - cs) * mu) * np.linalg.solve(A, step)
        h = ps @ ps / (1 - (1 - cs) ** (2 * t)) < n * (2 + 4 / (n + 1))
        pc = (1 - cc) * pc + h * math.sqrt(cc * (2 - cc) * mu) * step
        lengths = np.square(np.linalg.solve(A, y.T)).sum(0)
        rank_mu = (np.where(w > 0, w, w * n / lengths)[:, None] * y).T @ y
        rank_one = np.outer(pc, pc)
        C = (1 - c1 - cmu * w.sum() + (1 - h) * c1 * cc * (2 - cc)) * C + c1 * rank_one + cmu * rank_mu
        C = np.diag(np.diag(C)) if separable else C
        sigma = sigma * math.exp(min(1, cs / ds * (np.linalg.norm(ps) / chi - 1)))
    return mean, sigma**2 * C


@pytest.mark.parametrize("separable", [False, True])
@pytest.mark.parametrize("n_samples", [None, 8, 30])
def test_equals_the_textbook_run_for_run(separable, n_samples):
    distribution = (Gaussian if separable else FullGaussian)(sigma=0.7)
    solver = CMAES(n_iters=20, n_samples=n_samples, tau=0, distribution=distribution)
    noise = torch.randn(20, solver.samples(3), 3)
    sol = minimize(f, solver, torch.zeros(3), noise=noise)
    mean, covariance = textbook(
        lambda x: f(torch.as_tensor(x)).numpy(), np.zeros(3), 0.7, noise.numpy(), separable
    )
    np.testing.assert_allclose(sol.x.numpy(), mean, atol=1e-9)
    np.testing.assert_allclose(sol.state.phi.sigma.square().numpy(), np.diag(covariance), rtol=1e-6)
    if not separable:
        np.testing.assert_allclose(_covariance(sol), covariance, rtol=1e-6, atol=1e-12)


def _covariance(sol) -> np.ndarray:
    tril = sol.state.phi.scale_tril
    return (tril @ tril.mT).numpy()


@pytest.mark.filterwarnings("ignore:Could not import matplotlib")
@pytest.mark.parametrize(("n", "n_samples"), [(3, 7), (5, 8), (10, 10)])
def test_equals_pycma_run_for_run_given_the_same_samples(n, n_samples):
    cma = pytest.importorskip("cma", reason="pycma is a peer of the benchmarks, not a dependency")

    class ByCholesky(cma.sampler.GaussFullSampler):
        """pycma's own, but a step is whitened by the Cholesky factor in place of the symmetric root."""

        def transform_inverse(self, x):
            return np.linalg.solve(np.linalg.cholesky(self.C), np.asarray(x).T).T

    def values_of(x: Tensor) -> Tensor:
        return (torch.logspace(0, 2, n) * (x - 0.4).square()).sum(-1) + 0.3 * torch.sin(5 * x).sum(-1)

    T = 40
    noise = torch.randn(T, n_samples, n)
    solver = CMAES(n_iters=T, n_samples=n_samples, tau=0, distribution=FullGaussian(sigma=0.7))
    sol = minimize(values_of, solver, torch.zeros(n), noise=noise)

    options = {"popsize": n_samples, "CMA_sampler": ByCholesky, "verbose": -9}
    strategy = cma.CMAEvolutionStrategy(np.zeros(n), 0.7, options)
    strategy.sm.C, strategy.sm.D, strategy.sm.B = np.eye(n), np.ones(n), np.eye(n)  # else a little off them
    for z in noise.numpy():
        x = strategy.mean + strategy.sigma * z @ np.linalg.cholesky(strategy.sm.C).T
        strategy.ask()
        strategy.tell(list(x), values_of(torch.as_tensor(x)).tolist(), check_points=False)
    np.testing.assert_allclose(sol.x.numpy(), strategy.mean, atol=1e-8)
    np.testing.assert_allclose(_covariance(sol), strategy.sigma**2 * strategy.sm.C, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("normalize", [True, False, "half"])
@pytest.mark.parametrize("n_samples", [2, 7, 20])
def test_vanishing_tau_is_the_hard_ranking(n_samples, normalize):
    values = torch.randn(4, n_samples)
    soft, hard = (
        CMAES(n_samples=n_samples, tau=tau, normalize=normalize).weights(values, 0) for tau in (1e-9, 0)
    )
    assert torch.allclose(soft, hard, atol=1e-6)
    median = math.log(max(n_samples + 1, 3) / 2)
    logs = [median - math.log(r) for r in range(1, n_samples + 1)]
    assert torch.allclose(hard.sort(-1, descending=True).values, torch.tensor(logs))
    assert torch.equal(hard.argmax(-1), values.argmin(-1))


def test_soft_weights_keep_their_sum_and_their_order():
    values = torch.randn(5, 20)
    hard = CMAES(tau=0).weights(values, 0)
    for tau in (0.01, 0.1, 1.0):
        weights = CMAES(tau=tau).weights(values, 0)
        assert torch.allclose(weights.sum(-1), hard.sum(-1))
        assert (weights.gather(-1, values.argsort(-1)).diff() < 1e-12).all()


@pytest.mark.parametrize("tau", [0, 0.1])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_have_no_weight(bad, tau):
    values = torch.randn(3, 12)
    values[1, :4] = bad
    weights = CMAES(n_samples=12, tau=tau).weights(values, 0)
    assert (weights[1, :4] == 0).all() and weights.isfinite().all() and (weights.amax(-1) > 0).all()


@pytest.mark.parametrize("tau", [0, 0.05])
@pytest.mark.parametrize("problem", [*SMOOTH, *MULTIMODAL], ids=lambda p: p.name)
def test_finds_known_minimisers(problem, tau, generator):
    solver = CMAES(n_samples=40, n_iters=100, tau=tau, distribution=FullGaussian(sigma=problem.sigma))
    sol = minimize(lambda x: problem.f(x, problem.theta), solver, problem.start, generator=generator)
    assert torch.allclose(sol.x, problem.solution(problem.theta), atol=1e-4)


def test_learns_a_long_narrow_valley_that_defeats_dcem(generator):
    def rotated_ellipsoid(x: Tensor) -> Tensor:
        rotation = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(1))).Q
        return (torch.logspace(0, 6, 6) * ((x - 0.5) @ rotation).square()).sum(-1)

    x0 = torch.zeros(6)
    cma = minimize(rotated_ellipsoid, CMAES(n_iters=400), x0, generator=generator)
    cem = minimize(rotated_ellipsoid, DCEM(n_samples=14, n_elite=4, n_iters=400), x0, generator=generator)
    assert cma.cost < 1e-8 < 1e-2 < cem.cost


def test_the_separable_variant_is_for_hundreds_of_dimensions(generator):
    scales = torch.logspace(0, 2, 200)
    solver = CMAES(n_iters=600, distribution=Gaussian())
    sol = minimize(
        lambda x: (scales * (x - 0.5).square()).sum(-1), solver, torch.zeros(200), generator=generator
    )
    assert sol.cost < 1


MODES = {"Unroll": Unroll(), "Checkpoint": Checkpoint(), "Truncate": Truncate(3), "Prune": Prune(1.0)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "family",
    [
        lambda sigma: FullGaussian(sigma=sigma),
        lambda sigma: Gaussian(sigma=sigma),
        lambda sigma: FullGaussian(sigma=sigma, bounds=(-1.2, 1.3), boundary="squash"),
    ],
    ids=["full", "separable", "squash"],
)
def test_first_and_second_derivatives_of_a_whole_solve(family, mode):
    noise = 1.2 * torch.randn(3, 2, 6, 2)

    def solve(theta, x0, sigma, tau):
        solver = CMAES(n_samples=6, n_iters=3, tau=tau, distribution=family(sigma))
        return minimize(
            lambda x: torch.cosh(x - theta).sum(-1), solver, x0, noise=noise, backward=MODES[mode]
        ).x

    leaves = torch.randn(2), 0.5 * torch.randn(2, 2), torch.tensor([0.7, 0.9]), torch.tensor([1.0, 1.5])
    inputs = [v.requires_grad_() for v in leaves]
    assert torch.autograd.gradcheck(solve, inputs)
    if mode == "Unroll":
        assert torch.autograd.gradgradcheck(solve, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("distribution", [FullGaussian(), Gaussian()], ids=["full", "separable"])
@pytest.mark.parametrize("n_iters", [60, 200])
def test_the_jacobian_of_a_quadratic_is_the_identity_however_long_the_search(n_iters, distribution, dtype):
    theta = torch.linspace(-0.5, 0.7, 5, dtype=dtype, requires_grad=True)
    x = minimize(
        lambda x: sphere(x, theta),
        CMAES(n_iters=n_iters, distribution=distribution),
        torch.zeros(5, dtype=dtype),
        generator=torch.Generator().manual_seed(0),
    ).x
    rows = [torch.autograd.grad(x[i], theta, retain_graph=True)[0] for i in range(5)]
    assert (torch.stack(rows) - torch.eye(5)).norm() <= 0.05


@pytest.mark.parametrize("boundary", ["clamp", "squash"])
@pytest.mark.parametrize("family", [Gaussian, FullGaussian])
def test_bounds_hold_and_an_optimum_on_them_is_found(family, boundary, generator):
    distribution = family(sigma=0.5, bounds=(-1.0, 1.0), boundary=boundary)
    solver = CMAES(n_iters=60, distribution=distribution)
    target = torch.tensor([1.5, 0.3])
    sol = minimize(lambda x: sphere(x, target), solver, torch.zeros(4, 2), generator=generator, trace=True)
    assert all((record.samples.abs() <= 1).all() for record in sol.trace)
    assert torch.allclose(sol.x, torch.tensor([1.0, 0.3]).expand(4, 2), atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("distribution", [Gaussian(), FullGaussian()], ids=["separable", "full"])
def test_half_precision(dtype, distribution, generator):
    sol = minimize(
        lambda x: sphere(x, TARGET.to(dtype)),
        CMAES(n_iters=30, distribution=distribution),
        torch.zeros(4, 3, dtype=dtype),
        generator=generator,
    )
    assert sol.x.dtype == dtype and torch.allclose(sol.x.double(), TARGET.expand(4, 3), atol=0.1)


def test_scaling_or_shifting_the_objective_changes_nothing():
    solver = CMAES(n_iters=5)
    noise = torch.randn(5, 2, solver.samples(3), 3)
    first = minimize(f, solver, torch.zeros(2, 3), noise=noise).x
    for scale, shift in ((1e8, 0.0), (1e-8, 0.0), (1.0, 1e6)):
        other = minimize(lambda x, a=scale, b=shift: a * f(x) + b, solver, torch.zeros(2, 3), noise=noise).x
        assert (first - other).abs().max() < 1e-6


def test_the_population_grows_with_the_dimension():
    assert [CMAES().samples(n) for n in (1, 2, 5, 10, 20, 40)] == [4, 6, 8, 10, 12, 15]
    assert CMAES(n_samples=7).samples(100) == 7


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"tau": -1.0}, ValueError, r"tau must be >= 0, got -1.0"),
        ({"tau": torch.tensor(0.0)}, ValueError, r"tau must be > 0 where it is a tensor, got 0.0"),
        ({"n_samples": 0}, ValueError, r"n_samples must be a positive integer, got 0"),
        ({"n_samples": 1}, ValueError, r"n_samples must be at least 2, since samples are ranked, got 1"),
        ({"distribution": None}, TypeError, r"distribution must be one such as Gaussian\(\)"),
    ],
)
def test_bad_settings_say_what_is_wrong(settings, error, words):
    with pytest.raises(error, match=f"^CMAES: {words}"):
        CMAES(**settings)


def test_a_sharp_ridge_is_followed_to_its_end(generator):
    def ridge(x: Tensor) -> Tensor:
        return x[..., 0].square() + 100 * torch.linalg.vector_norm(x[..., 1:], dim=-1)

    solver = CMAES(n_iters=900, tau=0, returns="best", distribution=FullGaussian(2.0))
    sol = minimize(ridge, solver, torch.full((8, 5), 1.0), generator=generator)
    assert sol.cost.median() < 1e-10

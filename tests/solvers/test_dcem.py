"""DCEM: against an independent implementation, its limits, invariances and settings."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor

from dcem import DCEM, FullGaussian, Gaussian, minimize
from dcem.noise import Antithetic, Normal, Sobol
from problems import MULTIMODAL, SMOOTH, sphere

pytestmark = pytest.mark.usefixtures("double")
TARGET = torch.tensor([0.4, -0.3], dtype=torch.float64)


def f(x: Tensor) -> Tensor:
    return sphere(x, TARGET) + 0.3 * torch.sin(5 * x).sum(-1)


def reference(values_of, mean, sigma, noise, k, tau, paper) -> np.ndarray:
    """Algorithm 1 for one row, in NumPy: soft for tau > 0, the plain cross-entropy method for tau = 0.

    As in the paper, or with values scaled by their better half and the variance around the last mean.
    """
    n, T = len(mean), len(noise)
    for epsilon in noise:
        x = mean + sigma * epsilon
        v = values_of(x)
        if tau == 0:
            w = np.zeros(len(v))
            w[np.argsort(v)[:k]] = 1
        else:
            median = np.sort(v)[(len(v) - 1) // 2]
            half = np.sqrt(np.mean((v[v <= median] - median) ** 2))
            a = -(v - v.mean()) / (v.std() if paper else half) / tau
            nu = brentq(lambda nu, a=a: expit(a + nu).sum() - k, -1e3 / tau, 1e3 / tau, xtol=1e-14)
            w = expit(a + nu)
        w = (w / w.sum())[:, None]
        last, mean = mean, (w * x).sum(0)
        if paper:
            sigma = np.sqrt((w * (x - mean) ** 2).sum(0))
        else:
            mu = 1 / (w**2).sum()
            c = 2 * (mu - 1.75 + 1 / mu) / ((n + 2) ** 2 + mu) * (n + 2) / 3
            c = min(1, max(12 * n**0.5 / T, c))
            sigma = np.sqrt((1 - c) * sigma**2 + c * (w * (x - last) ** 2).sum(0))
    return mean


@pytest.mark.parametrize("paper", [True, False])
@pytest.mark.parametrize("tau", [0, 0.1, 1.0])
def test_equals_a_plain_implementation(tau, paper):
    noise = torch.randn(20, 30, 2)
    settings = {"normalize": True, "distribution": Gaussian(estimator="likelihood")} if paper else {}
    solver = DCEM(n_samples=30, n_elite=6, n_iters=20, tau=tau, **settings)
    sol = minimize(f, solver, torch.zeros(2), noise=noise)
    expected = reference(
        lambda x: f(torch.as_tensor(x)).numpy(), np.zeros(2), np.ones(2), noise.numpy(), 6, tau, paper
    )
    np.testing.assert_allclose(sol.x.numpy(), expected, atol=1e-9)
    assert torch.allclose(sol.cost, f(sol.x))


@pytest.mark.parametrize("problem", [*SMOOTH, *MULTIMODAL], ids=lambda p: p.name)
@pytest.mark.parametrize("tau", [0, 0.1, 1.0])
def test_finds_known_minimisers(problem, tau, generator):
    solver = DCEM(
        n_samples=300, n_elite=30, n_iters=60, tau=tau, distribution=FullGaussian(sigma=problem.sigma)
    )
    sol = minimize(lambda x: problem.f(x, problem.theta), solver, problem.start, generator=generator)
    assert torch.allclose(sol.x, problem.solution(problem.theta), atol=5e-3)


@pytest.mark.parametrize("distribution", [Gaussian(), FullGaussian(), Gaussian(bounds=(-1.0, 1.0))], ids=str)
@pytest.mark.parametrize("normalize", [True, False, "half"])
def test_vanishing_tau_is_hard_cem(distribution, normalize):
    noise = torch.randn(6, 4, 40, 2)

    def solve(tau: float) -> Tensor:
        solver = DCEM(
            n_samples=40, n_elite=5, n_iters=6, tau=tau, distribution=distribution, normalize=normalize
        )
        return minimize(f, solver, torch.zeros(4, 2), noise=noise).x

    assert (solve(1e-12) - solve(0)).abs().max() < 1e-6


@pytest.mark.parametrize(("scale", "shift"), [(1e8, 0.0), (1e-8, 0.0), (1.0, 1e6), (1.0, -1e6), (1e8, 1e6)])
@pytest.mark.parametrize("tau", [0, 0.1, 1.0])
@pytest.mark.parametrize("normalize", [True, "half"])
def test_scaling_or_shifting_the_objective_changes_nothing(scale, shift, tau, normalize):
    noise = torch.randn(5, 3, 50, 2)
    solver = DCEM(n_samples=50, n_elite=10, n_iters=5, tau=tau, normalize=normalize)

    def solve(g) -> Tensor:
        return minimize(g, solver, torch.zeros(3, 2), noise=noise).x

    assert (solve(lambda x: scale * f(x) + shift) - solve(f)).abs().max() < 1e-6


def test_a_few_huge_values_do_not_change_the_scale():
    """With the deviation of all values, one of 1e12 makes all others equal: the top-k is no longer one."""
    noise = torch.randn(1, 50, 2)

    def spread(normalize) -> float:
        solver = DCEM(n_samples=50, n_elite=5, n_iters=1, tau=0.1, normalize=normalize)

        def cliff(x: Tensor) -> Tensor:
            v = f(x)
            return torch.where(v >= v.amax(-1, keepdim=True), 1e12, v)

        return minimize(cliff, solver, torch.zeros(2), noise=noise, trace=True).trace[0].effective_samples

    assert spread("half") < 10 and spread(True) > 40


def test_without_normalisation_the_scale_matters():
    noise = torch.randn(3, 50, 2)
    solver = DCEM(n_samples=50, n_iters=3, normalize=False)
    first, second = (
        minimize(lambda x, s=s: s * f(x), solver, torch.zeros(2), noise=noise).x for s in (1, 100)
    )
    assert (first - second).abs().max() > 1e-2


@pytest.mark.parametrize("normalize", [True, False, "half"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("level", [0.0, 1.0, 1e6, -1e-8])
def test_constant_values_give_finite_gradients(normalize, dtype, level):
    theta = torch.ones(2, dtype=dtype, requires_grad=True)
    x0 = torch.zeros(3, 2, dtype=dtype, requires_grad=True)
    solver = DCEM(n_samples=20, n_elite=4, n_iters=4, normalize=normalize)
    sol = minimize(lambda x: level + 0 * (x * theta).sum(-1), solver, x0)
    gradients = torch.autograd.grad(sol.x.sum() + sol.cost.sum(), (theta, x0))
    assert sol.x.isfinite().all() and all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("distribution", [Gaussian(), Gaussian(bounds=(-1.0, 1.0)), FullGaussian()], ids=str)
@pytest.mark.parametrize("n_iters", [30, 100])
def test_a_solve_that_collapses_on_the_optimum_has_finite_gradients(distribution, n_iters, generator):
    """In float32 the values' spread falls below what can be squared long before the samples agree."""
    theta = torch.zeros(3, dtype=torch.float32, requires_grad=True)
    solver = DCEM(n_samples=40, n_elite=4, n_iters=n_iters, distribution=distribution)
    sol = minimize(
        lambda x: sphere(x, theta), solver, torch.zeros(2, 3, dtype=torch.float32), generator=generator
    )
    (gradient,) = torch.autograd.grad(sol.x.sum(), theta)
    assert gradient.isfinite().all()


def test_schedules_by_function_and_by_sequence_agree():
    noise = torch.randn(4, 2, 30, 2)
    taus, elites = [1.0, 0.5, 0.2, 0.1], [12, 9, 6, 3]

    def solve(n_elite, tau) -> Tensor:
        solver = DCEM(n_samples=30, n_iters=4, n_elite=n_elite, tau=tau)
        return minimize(f, solver, torch.zeros(2, 2), noise=noise).x

    expected = solve(elites, taus)
    assert torch.equal(solve(lambda t: 12 - 3 * t, lambda t: taus[t]), expected)
    assert torch.equal(solve(range(12, 0, -3), tuple(taus)), expected)
    assert torch.allclose(solve([torch.tensor(k) for k in elites], [torch.tensor(t) for t in taus]), expected)
    assert not torch.allclose(solve(12, 1.0), expected)
    by_step = [DCEM(n_samples=30, n_iters=1, n_elite=k, tau=t) for k, t in zip(elites, taus, strict=True)]
    state = torch.zeros(2, 2)
    for solver, epsilon in zip(by_step, noise, strict=True):
        state = minimize(f, solver, state, noise=[epsilon]).state
    assert torch.allclose(state.phi.mean, expected, atol=1e-12)


def test_a_schedule_that_ends_hard():
    noise = torch.randn(2, 30, 2)
    sol = minimize(f, DCEM(n_samples=30, n_iters=2, tau=[0.5, 0]), torch.zeros(2), noise=noise, trace=True)
    assert set(sol.trace[1].weights.unique().tolist()) == {0.0, 1.0}
    assert len(sol.trace[0].weights.unique()) > 2


def test_tau_and_elites_per_row():
    noise = torch.randn(4, 3, 30, 2)
    tau, k = torch.tensor([0.1, 1.0, 10.0]), torch.tensor([3, 6, 30])
    solver = DCEM(n_samples=30, n_iters=4, n_elite=k, tau=tau)
    together = minimize(f, solver, torch.zeros(3, 2), noise=noise).x
    for i in range(3):
        alone = DCEM(n_samples=30, n_iters=4, n_elite=k[i].item(), tau=tau[i].item())
        x = minimize(f, alone, torch.zeros(2), noise=noise[:, i]).x
        assert torch.allclose(together[i], x, atol=1e-9)


def test_returns_the_best_of_all_samples():
    noise = torch.randn(5, 3, 20, 2)
    solver = DCEM(n_samples=20, n_elite=5, n_iters=5, returns="best")
    sol = minimize(f, solver, torch.zeros(3, 2), noise=noise, trace=True)
    values = torch.stack([r.values for r in sol.trace], 1).flatten(1)
    samples = torch.stack([r.samples for r in sol.trace], 1).flatten(1, 2)
    best = values.argmin(-1)
    assert torch.equal(sol.x, samples[torch.arange(3), best])
    assert torch.allclose(sol.cost, values.amin(-1))


def test_sigma_min_keeps_exploring():
    sol = minimize(
        f, DCEM(sigma_min=0.2, n_iters=20, tau=0), torch.zeros(2), generator=torch.Generator(), trace=True
    )
    assert all((r.sigma >= 0.2 - 1e-12).all() for r in sol.trace)


@pytest.mark.parametrize("distribution", [Gaussian(), FullGaussian()], ids=str)
@pytest.mark.parametrize(
    "smoothing", [0.3, torch.tensor(0.3), torch.full((3,), 0.3), torch.full((2, 3), 0.3)], ids=str
)
def test_smoothing_keeps_a_share_of_the_last_distribution(distribution, smoothing):
    noise = torch.randn(1, 2, 3, 20, 2)
    x0 = torch.randn(2, 3, 2)

    def solve(smoothing):
        solver = DCEM(n_samples=20, n_iters=1, smoothing=smoothing, distribution=distribution)
        return minimize(f, solver, x0, noise=noise).state.phi

    fresh, first = solve(0.0), distribution.init(x0)
    for new, old, smooth in zip(fresh, first, solve(smoothing), strict=True):
        assert torch.allclose(smooth, 0.7 * new + 0.3 * old, atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(solve(1.0), first, strict=True))


@pytest.mark.parametrize("noise", [Normal(), Antithetic(), Sobol()], ids=lambda n: type(n).__name__)
def test_every_noise_finds_the_minimum(noise, generator):
    sol = minimize(
        lambda x: sphere(x, TARGET),
        DCEM(n_iters=40, noise=noise, distribution=Gaussian(bounds=(-1.0, 1.0))),
        torch.zeros(5, 2),
        generator=generator,
    )
    assert torch.allclose(sol.x, TARGET.expand(5, 2), atol=1e-2)


def test_kept_elites_take_part_again():
    noise = torch.randn(3, 2, 20, 2)
    solver = DCEM(n_samples=20, n_elite=5, n_iters=3, keep_elites=4)
    sol = minimize(f, solver, torch.zeros(2, 2), noise=noise, trace=True)
    for before, after in zip(sol.trace, sol.trace[1:], strict=False):
        best = before.values.topk(4, largest=False).indices
        expected = before.samples.gather(-2, best.unsqueeze(-1).expand(2, 4, 2))
        assert torch.equal(after.samples[:, :4], expected)
        assert (after.values.amin(-1) <= before.values.amin(-1) + 1e-12).all()


def test_effective_samples_are_far_above_k_at_tau_one():
    solver = DCEM(n_samples=200, n_elite=20, n_iters=1, tau=1.0, normalize=True)
    sol = minimize(lambda x: x.square().sum(-1), solver, torch.zeros(50, 2), trace=True)
    w = sol.trace[0].weights
    assert torch.allclose(sol.trace[0].effective_samples, 400 / w.square().sum(-1))
    assert 130 < sol.trace[0].effective_samples.mean() < 160
    hard = minimize(lambda x: x[..., 0], DCEM(n_samples=200, n_elite=20, tau=0), torch.zeros(1), trace=True)
    assert math.isclose(hard.trace[0].effective_samples.item(), 20)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tau", [0, 0.5])
@pytest.mark.parametrize("distribution", [Gaussian(), FullGaussian()], ids=str)
def test_half_precision(dtype, tau, distribution, generator):
    x0 = torch.zeros(4, 2, dtype=dtype)
    sol = minimize(
        lambda x: sphere(x, TARGET.to(dtype)),
        DCEM(tau=tau, distribution=distribution),
        x0,
        generator=generator,
    )
    assert sol.x.dtype == dtype
    assert torch.allclose(sol.x.double(), TARGET.expand(4, 2), atol=0.1)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"normalize": "whole"}, ValueError, r"normalize must be True, False or 'half', got 'whole'"),
        ({"n_samples": 0}, ValueError, r"n_samples must be a positive integer, got 0"),
        ({"n_samples": 10.0}, ValueError, r"n_samples must be a positive integer, got 10.0"),
        ({"keep_elites": 1.5}, ValueError, r"keep_elites must satisfy .*, as an integer, got 1.5"),
        ({"n_iters": -1}, ValueError, r"n_iters must be a positive integer, got -1"),
        ({"n_elite": 101}, ValueError, r"n_elite must satisfy 0 < n_elite <= n_samples = 100, got 101"),
        ({"n_elite": 0}, ValueError, r"n_elite must satisfy 0 < n_elite <= n_samples = 100, got 0"),
        ({"n_elite": torch.tensor([5, 200])}, ValueError, r"n_elite must satisfy .*got 200"),
        ({"n_elite": [5] * 9 + [101]}, ValueError, r"n_elite must satisfy .*got 101"),
        (
            {"n_elite": [5, 5]},
            ValueError,
            r"n_elite as a sequence needs one value per iteration \(10\), got 2",
        ),
        ({"tau": -0.5}, ValueError, r"tau must be >= 0, got -0.5"),
        ({"tau": torch.tensor([1.0, 0.0])}, ValueError, r"tau must be > 0 where it is a tensor, got 0.0"),
        ({"tau": math.nan}, ValueError, r"tau must be >= 0, got nan"),
        ({"tau": [1.0] * 9 + [-1.0]}, ValueError, r"tau must be >= 0, got -1.0"),
        ({"tau": [1.0]}, ValueError, r"tau as a sequence needs one value per iteration \(10\), got 1"),
        ({"returns": "median"}, ValueError, r"returns must be 'mean' or 'best', got 'median'"),
        ({"sigma_min": -1.0}, ValueError, r"sigma_min must be >= 0, got -1.0"),
        ({"smoothing": 1.5}, ValueError, r"smoothing must lie in \[0, 1\], got 1.5"),
        ({"smoothing": torch.tensor([0.5, -0.1])}, ValueError, r"smoothing must lie in \[0, 1\], got"),
        ({"stop_below": -1.0}, ValueError, r"stop_below must be >= 0 or None, got -1.0"),
        ({"keep_elites": 100}, ValueError, r"keep_elites must satisfy 0 <= keep_elites < n_samples = 100"),
        ({"distribution": Gaussian}, TypeError, r"distribution must be one such as Gaussian"),
        ({"noise": "sobol"}, TypeError, r"noise must have a method draw, got 'sobol'"),
    ],
)
def test_bad_settings_say_what_is_wrong(settings, error, words):
    with pytest.raises(error, match="^DCEM: " + words):
        DCEM(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tau": lambda t: 1.0 - t}, "tau must be >= 0, got -1.0"),
        ({"n_elite": lambda t: 10 + 50 * t}, "n_elite must satisfy"),
    ],
)
def test_a_bad_schedule_is_found_in_its_iteration(settings, words):
    with pytest.raises(ValueError, match=f"^DCEM: {words}"):
        minimize(f, DCEM(**settings), torch.zeros(2))


def test_settings_are_given_by_name_and_frozen():
    with pytest.raises(TypeError):
        DCEM(100)
    with pytest.raises(AttributeError):
        DCEM().tau = 0.5

"""MPPI: softmax weights."""

import math

import pytest
import torch

from dcem import DCEM, MPPI, FullGaussian, Gaussian, minimize
from problems import sphere

pytestmark = pytest.mark.usefixtures("double")
TARGET = torch.tensor([0.4, -0.3], dtype=torch.float64)


def f(x):
    return sphere(x, TARGET)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("temperature", [0.1, 1.0, torch.tensor(0.5)], ids=str)
def test_one_iteration_is_a_softmax_average(normalize, temperature):
    noise = torch.randn(1, 3, 50, 2)
    solver = MPPI(n_samples=50, n_iters=1, temperature=temperature, normalize=normalize)
    sol = minimize(f, solver, torch.zeros(3, 2), noise=noise)
    v = f(noise[0])
    if normalize:
        v = (v - v.mean(-1, keepdim=True)) / v.std(-1, correction=0, keepdim=True)
    expected = ((-v / temperature).softmax(-1).unsqueeze(-2) @ noise[0]).squeeze(-2)
    assert torch.allclose(sol.x, expected, atol=1e-12)


@pytest.mark.parametrize("distribution", [Gaussian(sigma=0.7), FullGaussian(sigma=0.7)], ids=str)
def test_the_covariance_stays_unless_asked(distribution):
    noise = torch.randn(4, 3, 50, 2)
    fixed = minimize(
        f, MPPI(n_samples=50, n_iters=4, distribution=distribution), torch.zeros(3, 2), noise=noise
    )
    assert torch.allclose(fixed.state.phi.sigma, torch.full((3, 2), 0.7))
    solver = MPPI(n_samples=50, n_iters=4, distribution=distribution, adapt_sigma=True)
    assert (minimize(f, solver, torch.zeros(3, 2), noise=noise).state.phi.sigma < 0.5).all()


def test_finds_the_minimum(generator):
    solver = MPPI(n_samples=200, n_iters=40, temperature=0.3, adapt_sigma=True)
    sol = minimize(f, solver, torch.zeros(4, 2), generator=generator)
    assert torch.allclose(sol.x, TARGET.expand(4, 2), atol=1e-2)


@pytest.mark.parametrize(("scale", "shift"), [(1e8, 0.0), (1e-8, 0.0), (1.0, 1e6)])
def test_scaling_or_shifting_the_objective_changes_nothing(scale, shift):
    noise = torch.randn(5, 3, 50, 2)
    solver = MPPI(n_samples=50, n_iters=5)
    first = minimize(f, solver, torch.zeros(3, 2), noise=noise).x
    second = minimize(lambda x: scale * f(x) + shift, solver, torch.zeros(3, 2), noise=noise).x
    assert (first - second).abs().max() < 1e-6


@pytest.mark.parametrize("normalize", [True, False, "half"])
def test_derivatives(normalize):
    noise = torch.randn(2, 2, 6, 2)
    leaves = [torch.randn(2), torch.randn(2, 2), torch.tensor(0.8)]

    def solve(theta, x0, temperature):
        solver = MPPI(n_samples=6, n_iters=2, temperature=temperature, normalize=normalize, adapt_sigma=True)
        return minimize(lambda x: sphere(x, theta), solver, x0, noise=noise).x

    inputs = [v.requires_grad_() for v in leaves]
    assert torch.autograd.gradcheck(solve, inputs)
    assert torch.autograd.gradgradcheck(solve, inputs)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("normalize", [True, False, "half"])
def test_bad_values_get_weight_zero_and_other_rows_are_not_touched(bad, normalize):
    noise = torch.randn(3, 3, 20, 2)
    solver = MPPI(n_samples=20, n_iters=3, normalize=normalize)
    theta = torch.tensor([0.4, -0.3], requires_grad=True)

    def spoilt(x):
        v = sphere(x, theta)
        mask = torch.zeros_like(v, dtype=torch.bool)
        mask[..., 1, :5] = v.shape[-1] > 1
        return torch.where(mask, bad, v)

    clean = minimize(f, solver, torch.zeros(3, 2), noise=noise)
    sol = minimize(spoilt, solver, torch.zeros(3, 2), noise=noise, trace=True)
    assert torch.equal(sol.x[[0, 2]], clean.x[[0, 2]])
    assert all((r.weights[1, :5] == 0).all() for r in sol.trace)
    assert torch.autograd.grad(sol.x.sum(), theta)[0].isfinite().all()


def test_constant_values_give_finite_gradients():
    theta = torch.ones(2, requires_grad=True)
    sol = minimize(lambda x: 3 + 0 * (x * theta).sum(-1), MPPI(n_iters=3), torch.zeros(2, 2))
    assert torch.autograd.grad(sol.x.sum(), theta)[0].isfinite().all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 0.0}, "temperature must be positive, got 0.0"),
        ({"temperature": -1.0}, "temperature must be positive, got -1.0"),
        ({"temperature": torch.tensor(-1.0)}, "temperature must be positive, got -1.0"),
        ({"temperature": torch.ones(3)}, "temperature must be a number or a scalar tensor, got shape"),
        ({"n_samples": -3}, "n_samples must be a positive integer, got -3"),
    ],
)
def test_bad_settings_say_what_is_wrong(settings, words):
    with pytest.raises(ValueError, match=f"^MPPI: {words}"):
        MPPI(**settings)


def test_weights_differ_from_the_top_k():
    noise = torch.randn(1, 30, 2)
    soft = minimize(f, MPPI(n_samples=30, n_iters=1), torch.zeros(2), noise=noise).x
    topk = minimize(f, DCEM(n_samples=30, n_iters=1), torch.zeros(2), noise=noise).x
    assert (soft - topk).abs().max() > 1e-3

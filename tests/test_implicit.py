"""The implicit derivative is the known one, and that of finite differences, inside and on bounds."""

import pytest
import torch
from torch import Tensor

import dcem
from dcem.backward import Detach, Implicit, Unroll
from problems import BOXED, MULTIMODAL, SMOOTH, Problem, sphere

PROBLEMS = [*SMOOTH, *MULTIMODAL, *BOXED]


def solve(problem: Problem, theta: Tensor, mode, n_iters: int = 60) -> Tensor:
    family = dcem.FullGaussian if problem.bounds is None else dcem.Gaussian
    distribution = family(sigma=problem.sigma, bounds=problem.bounds)
    solver = dcem.DCEM(n_samples=400, n_elite=60, n_iters=n_iters, tau=0.1, distribution=distribution)
    generator = torch.Generator().manual_seed(0)
    return dcem.minimize(
        lambda x: problem.f(x, theta), solver, problem.start, backward=mode, generator=generator
    ).x


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_the_jacobian_is_the_known_one(problem):
    jacobian = torch.autograd.functional.jacobian(lambda t: solve(problem, t, Implicit()), problem.theta)
    assert torch.allclose(jacobian, problem.jacobian, atol=1e-3)


@pytest.mark.parametrize("problem", SMOOTH[:3], ids=lambda p: p.name)
def test_it_is_what_a_long_unroll_converges_to(problem):
    theta = problem.theta.clone().requires_grad_()
    found = [torch.autograd.grad(solve(problem, theta, m).sum(), theta)[0] for m in (Implicit(), Unroll())]
    assert torch.allclose(*found, atol=1e-3)


def test_it_is_the_slope_of_finite_differences():
    matrix = torch.randn(6, 4, dtype=torch.float64)

    def answer(theta: Tensor, mode=Implicit()) -> Tensor:  # noqa: B008
        def f(x: Tensor) -> Tensor:
            return ((x @ matrix.T - theta).square() + 0.1 * (x @ matrix.T - theta) ** 4).sum(-1)

        generator = torch.Generator().manual_seed(0)
        solver = dcem.DCEM(n_samples=200, n_elite=30, n_iters=150, tau=0.1, distribution=dcem.FullGaussian())
        return dcem.minimize(f, solver, torch.zeros(4).double(), backward=mode, generator=generator).x

    theta = torch.randn(6, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(6, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(answer(theta).sum(), theta)
    with torch.no_grad():
        up, down = (answer(theta + h * direction, Detach()).sum() for h in (1e-4, -1e-4))
    assert torch.allclose(gradient @ direction, (up - down) / 2e-4, rtol=1e-3, atol=1e-5)


def test_rows_of_a_batch_are_solved_each_for_itself():
    theta = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    scale = torch.rand(3, 2, 1, dtype=torch.float64) + 0.5

    def f(x: Tensor) -> Tensor:
        return scale * sphere(x, theta.unsqueeze(-2))

    x = dcem.minimize(f, dcem.DCEM(n_iters=40), torch.zeros_like(theta), backward=Implicit()).x
    weights = torch.randn_like(x)
    (gradient,) = torch.autograd.grad((weights * x).sum(), theta)
    assert torch.allclose(gradient, weights)


def test_the_forward_pass_is_that_of_unrolling_and_leaves_no_graph():
    seen = []

    def f(x: Tensor) -> Tensor:
        seen.append(x.requires_grad)
        return sphere(x, theta)

    theta = torch.tensor([0.4, -0.3], requires_grad=True)
    noise = torch.randn(10, 100, 2)
    modes = {mode: dcem.minimize(f, dcem.DCEM(), torch.zeros(2), backward=mode, noise=noise).x
             for mode in (Unroll(), Implicit())}  # fmt: skip
    assert torch.equal(*modes.values())
    assert not any(seen[11:-2])  # none of its ten iterations


def test_a_saddle_is_an_error_that_damping_can_help():
    theta = torch.tensor([0.5, 0.0], dtype=torch.float64, requires_grad=True)

    def saddle(x: Tensor) -> Tensor:
        d = x - theta
        return d[..., 0] ** 2 - d[..., 1] ** 2

    bounded = dcem.Gaussian(sigma=1e-3, bounds=(-1.0, 1.0))
    solver = dcem.DCEM(n_iters=1, distribution=bounded)
    x = dcem.minimize(saddle, solver, theta.detach(), backward=Implicit()).x
    with pytest.raises(ValueError, match="Implicit: f must have a positive definite Hessian"):
        x.sum().backward()
    x = dcem.minimize(saddle, solver, theta.detach(), backward=Implicit(damping=10.0)).x
    (gradient,) = torch.autograd.grad(x.sum(), theta)
    assert gradient.isfinite().all()


def test_a_flat_direction_is_an_error_in_its_row():
    theta = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    flat = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return (flat.unsqueeze(-2) * (x - theta.unsqueeze(-2)).square()).sum(-1)

    x = dcem.minimize(f, dcem.DCEM(n_iters=30), torch.zeros(2, 2).double(), backward=Implicit()).x
    with pytest.raises(ValueError, match="in row 1"):
        x.sum().backward()


def test_what_only_shifts_the_objective_has_a_zero_gradient():
    theta = torch.tensor([0.4, -0.3], requires_grad=True)
    shift = torch.tensor(2.0, requires_grad=True)
    x = dcem.minimize(lambda x: sphere(x, theta) + shift, dcem.DCEM(), torch.zeros(2), backward=Implicit()).x
    assert torch.autograd.grad(x.sum(), shift)[0] == 0


def test_without_anything_to_learn_the_answer_is_a_constant():
    x = dcem.minimize(lambda x: x.square().sum(-1), dcem.DCEM(), torch.zeros(2), backward=Implicit()).x
    assert not x.requires_grad


@pytest.mark.parametrize("settings", [{"damping": -1.0}, {"n_iters": 0}])
def test_bad_settings_are_named(settings):
    with pytest.raises(ValueError, match=f"Implicit: {next(iter(settings))} must be"):
        Implicit(**settings)

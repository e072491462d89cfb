"""Unrolled gradient descent."""

import math

import pytest
import torch

from dcem import GradientDescent, backward, minimize
from dcem.backward import Checkpoint, Detach, Prune, Truncate
from problems import sphere

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_on_a_sphere_every_step_shrinks_the_distance(batch):
    theta, x0 = torch.randn(2), torch.randn(*batch, 2)
    sol = minimize(lambda x: sphere(x, theta), GradientDescent(n_iters=5, learning_rate=0.1), x0)
    assert torch.allclose(sol.x, theta + 0.8**5 * (x0 - theta))
    assert torch.allclose(sol.cost, sphere(sol.x, theta))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_equals_the_optimiser_of_torch(momentum):
    def f(x):
        return (x**4 / 4 - x + 0.5 * x.square()).sum(-1)

    x = torch.randn(3, 2).requires_grad_()
    sol = minimize(f, GradientDescent(n_iters=7, learning_rate=0.05, momentum=momentum), x.detach().clone())
    optimiser = torch.optim.SGD([x], lr=0.05, momentum=momentum)
    for _ in range(7):
        optimiser.zero_grad()
        f(x).sum().backward()
        optimiser.step()
    assert torch.allclose(sol.x, x, atol=1e-12)


@pytest.mark.parametrize("mode", [backward.Unroll(), Checkpoint(), Truncate(3), Prune(0.2)], ids=str)
def test_derivatives_with_respect_to_everything(mode):
    leaves = [torch.randn(2), torch.randn(2, 2), torch.tensor(0.1)]

    def solve(theta, x0, learning_rate):
        solver = GradientDescent(n_iters=3, learning_rate=learning_rate, momentum=0.5)
        return minimize(lambda x: torch.cosh(x - theta).sum(-1), solver, x0, backward=mode).x

    inputs = [v.requires_grad_() for v in leaves]
    assert torch.autograd.gradcheck(solve, inputs)
    assert torch.autograd.gradgradcheck(solve, inputs)


def test_truncation_drops_the_early_steps():
    theta = torch.zeros(2, requires_grad=True)

    def jacobian(n):
        solver = GradientDescent(n_iters=5, learning_rate=0.1)
        x = minimize(lambda x: sphere(x, theta), solver, torch.ones(2), backward=Truncate(n)).x
        return torch.autograd.grad(x[0], theta)[0][0].item()

    assert math.isclose(jacobian(5), 1 - 0.8**5)
    assert math.isclose(jacobian(2), 1 - 0.8**2)


def test_detach_gives_a_constant_that_still_descended():
    theta = torch.zeros(2, requires_grad=True)
    sol = minimize(lambda x: sphere(x, theta), GradientDescent(), torch.ones(2), backward=Detach())
    assert not sol.x.requires_grad and sol.cost.requires_grad
    assert torch.allclose(sol.x, torch.full((2,), 0.8**10))


@pytest.mark.parametrize("mode", [backward.Unroll(), Checkpoint(), Prune(0.25), Detach()], ids=str)
def test_the_mode_does_not_change_the_answer(mode):
    def solve(mode):
        return minimize(
            lambda x: sphere(x, torch.ones(2)),
            GradientDescent(n_samples=4),
            torch.zeros(3, 2),
            backward=mode,
            generator=torch.Generator().manual_seed(0),
        ).state.x

    assert torch.equal(solve(mode), solve(backward.Unroll()))


def test_works_without_gradients_enabled():
    with torch.no_grad():
        sol = minimize(lambda x: sphere(x, torch.ones(2)), GradientDescent(), torch.zeros(2))
    assert torch.allclose(sol.x, torch.full((2,), 1 - 0.8**10)) and not sol.x.requires_grad


def test_several_starts_return_the_best(generator):
    """Two wells; x0 sits in the worse one."""

    def wells(x):
        return ((x - 1).square() * ((x + 2).square() + 0.5)).sum(-1)

    solver = GradientDescent(n_iters=60, learning_rate=0.02, n_samples=16, sigma=2.0)
    x0 = torch.full((5, 1), -2.2)
    alone = minimize(wells, GradientDescent(n_iters=60, learning_rate=0.02), x0)
    assert (alone.x < 0).all()
    sol = minimize(wells, solver, x0, generator=generator, trace=True)
    assert torch.allclose(sol.x, torch.ones(5, 1), atol=1e-3)
    assert torch.equal(sol.trace[0].samples[:, 0], x0)  # the first starting point is x0 itself
    assert sol.trace[0].samples.shape == (5, 16, 1)
    assert sol.trace[0].weights is None and sol.trace[0].effective_samples is None


@pytest.mark.parametrize("n_samples", [1, 2, 4])
def test_restarting_goes_on_from_where_it_was(n_samples):
    def f(x):
        return sphere(x, torch.ones(2))

    x0, starts = torch.zeros(3, 2), torch.randn(3, n_samples - 1, 2)
    settings = {"n_samples": n_samples, "momentum": 0.5}
    noise = [None if n_samples == 1 else starts] + [None] * 9
    whole = minimize(f, GradientDescent(n_iters=10, **settings), x0, noise=noise)
    half = minimize(f, GradientDescent(n_iters=5, **settings), x0, noise=noise[:5])
    rest = minimize(f, GradientDescent(n_iters=5, **settings), half.state)
    assert torch.allclose(rest.x, whole.x, atol=1e-12)


def test_a_start_without_a_finite_value_stays_and_the_others_move():
    def f(x):
        v = sphere(x, torch.zeros(1))
        return torch.where(x[..., 0] > 1.5, math.nan, v)

    noise = [torch.tensor([[1.0], [-0.5]])] + [None] * 4  # starts at 1, 2 (no value there) and 0.5
    sol = minimize(f, GradientDescent(n_iters=5, n_samples=3), torch.ones(1), noise=noise)
    assert sol.state.x[1].item() == 2.0
    assert math.isclose(sol.x.item(), 0.5 * 0.8**5)


def test_an_objective_that_cannot_be_differentiated_says_so():
    with pytest.raises(ValueError, match=r"^GradientDescent: f must be differentiable in x"):
        minimize(lambda x: sphere(x.detach(), torch.zeros(2)), GradientDescent(), torch.ones(2))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_iters": 0}, "n_iters must be a positive integer, got 0"),
        ({"n_samples": 1.5}, "n_samples must be a positive integer, got 1.5"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\), got 1.0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, got 0.0"),
    ],
)
def test_bad_settings_say_what_is_wrong(settings, words):
    with pytest.raises(ValueError, match=f"^GradientDescent: {words}"):
        GradientDescent(**settings)


def test_no_graph_is_kept_that_nobody_can_use():
    x0 = torch.zeros(2)
    assert not minimize(lambda x: x.square().sum(-1), GradientDescent(n_iters=3), x0).x.requires_grad
    centre = torch.ones(2, requires_grad=True)
    assert minimize(lambda x: (x - centre).square().sum(-1), GradientDescent(n_iters=3), x0).x.requires_grad


@pytest.mark.parametrize("sigma", [0.0, -1.0, torch.tensor([1.0, -1.0])])
def test_a_spread_that_is_not_positive_is_named(sigma):
    with pytest.raises(ValueError, match="GradientDescent: sigma must be positive"):
        GradientDescent(n_samples=3, sigma=sigma)


def test_a_spread_is_per_dimension_and_not_per_starting_point():
    solver = GradientDescent(n_samples=3, n_iters=1, learning_rate=1e-9, sigma=torch.tensor([1e-3, 1e3, 1.0]))
    noise = [torch.ones(2, 2, 3)]
    trace = minimize(lambda x: x.square().sum(-1), solver, torch.zeros(2, 3), noise=noise, trace=True).trace
    assert torch.allclose(trace[0].samples[:, 1:], torch.tensor([1e-3, 1e3, 1.0]).expand(2, 2, 3))
    with pytest.raises(ValueError, match="sigma must broadcast against x0"):
        minimize(lambda x: x.sum(-1), GradientDescent(n_samples=3, sigma=torch.ones(2)), torch.zeros(2, 3))


def test_it_stays_inside_its_bounds_and_finds_the_optimum_on_them():
    theta = torch.tensor([2.0, 0.3], requires_grad=True)
    solver = GradientDescent(n_iters=50, bounds=(-1.0, 1.0), n_samples=4)
    sol = minimize(lambda x: (x - theta).square().sum(-1), solver, torch.zeros(2), trace=True)
    assert torch.allclose(sol.x, torch.tensor([1.0, 0.3]), atol=1e-3)
    assert all((record.samples.abs() <= 1).all() for record in sol.trace)
    (gradient,) = torch.autograd.grad(sol.x.sum(), theta)
    assert torch.allclose(gradient, torch.tensor([0.0, 1.0]), atol=1e-3)
    with pytest.raises(ValueError, match="x0 must lie within the bounds"):
        minimize(lambda x: x.sum(-1), solver, torch.full((2,), 3.0))

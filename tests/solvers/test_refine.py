"""Gradient steps on the best samples: what they are, what they cost, their derivatives."""

import pytest
import torch
from torch import Tensor

from dcem import CMAES, DCEM, MPPI, Categorical, FullGaussian, Gaussian, Refine, minimize
from dcem.backward import Checkpoint, Detach, Implicit, Prune, Truncate, Unroll
from problems import SMOOTH, rastrigin, sphere

pytestmark = pytest.mark.usefixtures("double")
SOLVERS = {
    "diagonal": DCEM(n_samples=12, n_elite=4, n_iters=4, refine=Refine(2)),
    "full": DCEM(n_samples=12, n_elite=4, n_iters=4, refine=Refine(), distribution=FullGaussian()),
    "cma": CMAES(n_samples=12, n_iters=4, refine=Refine()),
    "mppi": MPPI(n_samples=12, n_iters=4, refine=Refine(2, lengths=[1.0])),
    "kept": DCEM(n_samples=12, n_elite=4, n_iters=4, refine=Refine(), keep_elites=2),
}


@pytest.mark.parametrize("family", [Gaussian, FullGaussian])
def test_a_step_is_so_many_standard_deviations_down_the_gradient(family):
    theta = torch.tensor([3.0, -2.0, 1.0])
    refine = Refine(2, lengths=(0.5, 2.0))
    solver = DCEM(n_samples=9, n_elite=3, n_iters=2, distribution=family(), refine=refine)
    f = lambda x: (torch.tensor([1.0, 10.0, 100.0]) * (x - theta).square()).sum(-1)  # noqa: E731
    noise = torch.randn(2, 9, 3)
    first, second = minimize(f, solver, torch.zeros(3), noise=noise, trace=True).trace
    state = solver.init(torch.zeros(3))
    state, _ = solver.step(lambda x, influence: f(x), state, noise[0], 0)
    phi = state.phi
    covariance = phi.sigma.square().diag() if family is Gaussian else phi.scale_tril @ phi.scale_tril.mT
    best = first.samples[first.values.argsort()[:2]]
    for i, length in enumerate((0.5, 2.0)):
        for j in range(2):
            slope = torch.func.grad(f)(best[j])
            step = length * covariance @ slope / (slope @ covariance @ slope).sqrt()
            assert torch.allclose(second.samples[2 * i + j], best[j] - step)
            # So long in the distribution's own measure.
            assert torch.isclose((step @ torch.linalg.solve(covariance, step)).sqrt(), torch.tensor(length))
    drawn = solver.distribution.sample(state.phi, noise[1])
    assert torch.allclose(second.samples[4:], drawn[4:])


@pytest.mark.parametrize("name", SOLVERS)
def test_the_objective_is_called_once_more_an_iteration_at_the_best_alone(name):
    shapes, solver = [], SOLVERS[name]

    def f(x: Tensor) -> Tensor:
        shapes.append(tuple(x.shape))
        return sphere(x, torch.tensor([0.4, -0.3]))

    minimize(f, solver, torch.zeros(3, 2))
    assert shapes == [(3, 12, 2), (3, solver.refine.n, 2)] * 4 + [(3, 1, 2)]


@pytest.mark.parametrize("name", SOLVERS)
def test_a_batch_is_a_loop_and_the_scales_of_f_and_x_do_not_matter(name):
    solver, noise, x0 = SOLVERS[name], torch.randn(4, 3, 12, 2), torch.randn(3, 2)
    f = lambda x: sphere(x, torch.tensor([0.4, -0.3])) + 0.2 * torch.sin(4 * x).sum(-1)  # noqa: E731
    together = minimize(f, solver, x0, noise=noise).x
    alone = [minimize(f, solver, x0[i], noise=noise[:, i]).x for i in range(3)]
    assert torch.allclose(together, torch.stack(alone))
    scaled = minimize(lambda x: 1e6 * f(x) - 3, solver, x0, noise=noise).x
    assert torch.allclose(scaled, together, atol=1e-6)


@pytest.mark.parametrize("boundary", ["clamp", "truncate", "squash"])
def test_bounds_hold_and_an_optimum_on_them_is_found(boundary, generator):
    box = Gaussian(sigma=0.5, bounds=(-1.0, 1.0), boundary=boundary)
    solver = DCEM(n_samples=20, n_elite=5, n_iters=20, distribution=box, refine=Refine())
    target = torch.tensor([1.5, 0.3])
    sol = minimize(lambda x: sphere(x, target), solver, torch.zeros(4, 2), generator=generator, trace=True)
    assert all((record.samples.abs() <= 1).all() for record in sol.trace)
    assert torch.allclose(sol.x, torch.tensor([1.0, 0.3]).expand(4, 2), atol=2e-2)


@pytest.mark.parametrize("tau", [0, 0.5])
def test_a_constraint_sees_the_samples_of_its_record(tau, generator):
    solver = DCEM(n_samples=12, n_elite=4, n_iters=12, tau=tau, refine=Refine(2))
    sol = minimize(
        lambda x: sphere(x, torch.tensor([0.9, 0.9])),
        solver,
        torch.zeros(3, 2),
        constraint=lambda x: x[..., 0] - 0.5,
        generator=generator,
        trace=True,
    )
    for record in sol.trace:
        assert record.values.shape == record.violation.shape == (3, 12)
        assert torch.allclose(record.violation, (record.samples[..., 0] - 0.5).relu())
        assert torch.allclose(record.values, sphere(record.samples, torch.tensor([0.9, 0.9])))
    assert (sol.x[..., 0] <= 0.5).all() and (sol.cost < 0.3).all()


MODES = [Unroll(), Checkpoint(), Truncate(3), Prune(1.0)]


@pytest.mark.parametrize("mode", MODES, ids=repr)
@pytest.mark.parametrize("name", ["diagonal", "full", "cma", "mppi"])
def test_derivatives_of_a_whole_solve(name, mode):
    noise = 1.2 * torch.randn(3, 2, 8, 2)
    kind, family = {
        "diagonal": (DCEM, Gaussian),
        "full": (DCEM, FullGaussian),
        "cma": (CMAES, FullGaussian),
        "mppi": (MPPI, Gaussian),
    }[name]

    def solve(theta: Tensor, x0: Tensor, lengths: Tensor) -> Tensor:
        settings = {"n_elite": 3} if kind is DCEM else {}
        settings |= {} if kind is MPPI else {"tau": 1.0}
        solver = kind(n_samples=8, n_iters=3, refine=Refine(1, lengths), distribution=family(), **settings)
        return minimize(lambda x: torch.cosh(x - theta).sum(-1), solver, x0, noise=noise, backward=mode).x

    leaves = torch.randn(2), 0.5 * torch.randn(2, 2), torch.tensor([0.5, 1.2])
    inputs = [x.requires_grad_() for x in leaves]
    assert torch.autograd.gradcheck(solve, inputs)


@pytest.mark.parametrize("mode", [Detach(), Implicit()], ids=repr)
def test_modes_without_a_graph_of_the_search(mode, generator):
    theta = torch.tensor([0.4, -0.3], requires_grad=True)
    solver = CMAES(n_iters=60, refine=Refine())
    sol = minimize(lambda x: sphere(x, theta), solver, torch.zeros(2), generator=generator, backward=mode)
    assert torch.allclose(sol.x, theta, atol=1e-6)
    assert sol.x.requires_grad == isinstance(mode, Implicit)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_moves_nothing(bad, generator):
    def f(x: Tensor) -> Tensor:
        good = sphere(x, torch.tensor([0.4, -0.3]))
        return torch.where(x[..., :1].sum(-1) > 0.6, bad * good, good) + 0 * x.sum(-1).sqrt().nan_to_num()

    solver = DCEM(n_samples=20, n_elite=5, n_iters=15, refine=Refine(2))
    sol = minimize(f, solver, torch.zeros(3, 2), generator=generator)
    assert torch.allclose(sol.x, torch.tensor([0.4, -0.3]).expand(3, 2), atol=0.05)


@pytest.mark.parametrize("problem", SMOOTH, ids=lambda p: p.name)
def test_it_finds_smooth_minima_with_a_fraction_of_the_evaluations(problem, generator):
    plain, refined = (
        minimize(
            lambda x: problem.f(x, problem.theta),
            CMAES(n_samples=8, n_iters=25, tau=0, refine=refine, distribution=FullGaussian(problem.sigma)),
            problem.start.expand(32, -1),
            generator=generator,
        ).x
        for refine in (None, Refine())
    )
    answer = problem.solution(problem.theta)
    distance = [(x - answer).norm(dim=-1).median() for x in (plain, refined)]
    assert distance[1] < distance[0] / 5


def test_it_still_searches_beyond_the_next_minimum(generator):
    theta = torch.tensor([1.2, -0.8])
    solver = DCEM(n_samples=60, n_elite=6, n_iters=20, distribution=Gaussian(sigma=2.0), refine=Refine())
    sol = minimize(lambda x: rastrigin(x, theta), solver, torch.zeros(8, 2), generator=generator)
    assert ((sol.x - theta).norm(dim=-1) < 0.1).sum() >= 6


def test_a_state_goes_on_with_the_moved_samples():
    solver, noise = SOLVERS["diagonal"], torch.randn(4, 12, 2)
    f = lambda x: sphere(x, torch.tensor([0.4, -0.3]))  # noqa: E731
    state = minimize(f, solver, torch.zeros(2), noise=noise).state
    again = minimize(f, solver, state, noise=noise, trace=True)
    assert torch.equal(again.trace[0].samples[: solver.refine.count], state.elites)


def test_equal_settings_are_equal():
    assert Refine(2, torch.tensor([1.0])) == Refine(2, torch.tensor([1.0])) != Refine(2, torch.tensor([2.0]))
    assert DCEM(refine=Refine()) == DCEM(refine=Refine()) != DCEM()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Refine(0), ValueError, "Refine: n must be a positive integer, got 0"),
        (lambda: Refine(lengths=()), ValueError, r"Refine: lengths must be positive numbers, got \(\)"),
        (lambda: Refine(lengths=(1.0, -1.0)), ValueError, "Refine: lengths must be positive numbers"),
        (lambda: DCEM(refine=True), ValueError, "DCEM: refine must be a Refine of fewer points than"),
        (lambda: CMAES(refine=Refine(2)), ValueError, "fewer points than n_samples = 4, got Refine"),
        (
            lambda: DCEM(refine=Refine(), distribution=Categorical(3)),
            TypeError,
            "DCEM: refine must be left out unless the distribution is a Gaussian or a FullGaussian",
        ),
        (
            lambda: minimize(lambda x: x.detach().sum(-1), DCEM(refine=Refine()), torch.zeros(2)),
            ValueError,
            "Refine: f must be differentiable in x, but its values carry no graph",
        ),
    ],
)
def test_bad_settings_say_what_is_wrong(make, error, words):
    with pytest.raises(error, match=words):
        make()

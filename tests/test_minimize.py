"""minimize: its answers and their derivatives, batches, randomness, records and restarts."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dcem import DCEM, FullGaussian, Gaussian, Solution, minimize
from problems import BOXED, SMOOTH, sphere
from solver_cases import SOLVERS, f, noise_for

pytestmark = pytest.mark.usefixtures("double")

# --------------------------------------------------------------------------- answers and their derivatives


@pytest.mark.parametrize("problem", SMOOTH, ids=lambda p: p.name)
def test_the_minimiser_moves_with_the_parameters_as_it_should(problem):
    """The gradient of the solve, over 32 rows of noise, is close to that of the exact minimiser."""
    theta = problem.theta.clone().requires_grad_()
    solver = DCEM(n_samples=200, n_elite=20, n_iters=30, distribution=FullGaussian(sigma=problem.sigma))
    x0 = problem.start.expand(32, -1)
    x = minimize(lambda x: problem.f(x, theta), solver, x0, generator=torch.Generator().manual_seed(0)).x
    rows = [torch.autograd.grad(x[:, i].mean(), theta, retain_graph=True)[0] for i in range(x.shape[-1])]
    assert torch.allclose(torch.stack(rows), problem.jacobian, atol=0.15)


def test_learning_the_objective_moves_its_minimum():
    goal = torch.tensor([0.5, -0.7])
    theta = torch.zeros(2, requires_grad=True)
    optimiser = torch.optim.Adam([theta], lr=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        optimiser.zero_grad()
        x = minimize(lambda x: sphere(x, theta), DCEM(), torch.zeros(2), generator=generator).x
        (x - goal).square().sum().backward()
        optimiser.step()
    assert torch.allclose(theta, goal, atol=0.1)


@pytest.mark.parametrize("problem", BOXED, ids=lambda p: p.name)
@pytest.mark.parametrize("boundary", ["clamp", "truncate", "squash"])
def test_an_optimum_outside_the_box_is_found_on_its_face(problem, boundary, generator):
    distribution = Gaussian(sigma=problem.sigma, bounds=problem.bounds, boundary=boundary)
    solver = DCEM(n_samples=200, n_elite=10, n_iters=40, tau=0.1, distribution=distribution)
    sol = minimize(lambda x: problem.f(x, problem.theta), solver, problem.start, generator=generator)
    # A squashed Gaussian would have to run to infinity.
    assert torch.allclose(sol.x, problem.solution(problem.theta), atol=0.15 if boundary == "squash" else 0.01)
    assert distribution.box.contains(sol.x)


@pytest.mark.parametrize("boundary", ["clamp", "truncate", "squash"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bounds", [(-0.1, 0.3), (-0.7, 0.1), (-1.1, 1.3)], ids=str)
def test_samples_and_answers_are_inside_to_the_last_bit(boundary, dtype, bounds, generator):
    """So that an answer can start the next solve; the mean of points on a face may round to outside."""
    distribution = Gaussian(sigma=1.0, bounds=bounds, boundary=boundary)
    solver = DCEM(n_samples=30, n_elite=3, n_iters=20, tau=0.05, distribution=distribution)
    x = torch.zeros(8, 2, dtype=dtype)
    for _ in range(2):
        sol = minimize(lambda x: -5 * x.sum(-1), solver, x, generator=generator, trace=True)
        x = sol.x
        assert distribution.box.contains(x).all()
        assert all(distribution.box.contains(record.samples).all() for record in sol.trace)


@pytest.mark.parametrize("boundary", ["truncate", "squash"])
def test_gradients_stay_alive_where_clamping_kills_them(boundary):
    """The optimum is far outside: every clamped sample ends on the face, where it passes no gradient."""

    def gradient(boundary: str) -> Tensor:
        theta = torch.tensor([5.0], requires_grad=True)
        # By likelihood, which stops on the way: an answer that has arrived has forgotten x0.
        distribution = Gaussian(sigma=1.0, bounds=(-1.0, 1.0), boundary=boundary, estimator="likelihood")
        solver = DCEM(n_samples=100, n_elite=5, n_iters=6, tau=0.1, normalize=True, distribution=distribution)
        x0 = torch.full((16, 1), 0.9, requires_grad=True)
        generator = torch.Generator().manual_seed(0)
        x = minimize(lambda x: sphere(x, theta), solver, x0, generator=generator).x
        (g,) = torch.autograd.grad(x.sum(), x0)
        assert g.isfinite().all()
        return g.abs().squeeze(-1)

    assert (gradient(boundary) > 0).all()
    assert gradient("clamp").median() < 0.1 * gradient(boundary).median()


# --------------------------------------------------------------------------- batches


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("batch", [(1,), (3,), (2, 3)], ids=str)
def test_a_batch_equals_a_loop(name, batch):
    solver, x0 = SOLVERS[name], 0.5 * torch.randn(*batch, 2)
    noise = noise_for(solver, x0)
    together = minimize(f, solver, x0, noise=noise)
    for index in torch.cartesian_prod(*map(torch.arange, batch)).reshape(-1, len(batch)).tolist():
        row = tuple(index)
        alone = minimize(f, solver, x0[row], noise=[None if e is None else e[row] for e in noise])
        assert torch.allclose(together.x[row], alone.x, atol=1e-9)
        assert torch.allclose(together.cost[row], alone.cost, atol=1e-9)


@pytest.mark.parametrize("name", SOLVERS)
def test_one_row_is_its_own_batch_of_one(name):
    solver, x0 = SOLVERS[name], torch.randn(2)
    noise = noise_for(solver, x0)
    sol = minimize(f, solver, x0, noise=noise)
    assert sol.x.shape == (2,) and sol.cost.shape == ()


def test_rows_keep_their_own_problem():
    """An objective with one target a row: answers must not be mixed up between rows and samples."""
    targets = torch.randn(7, 2).clamp(-0.9, 0.9)
    sol = minimize(lambda x: sphere(x, targets[:, None]), DCEM(n_iters=40), torch.zeros(7, 2))
    assert torch.allclose(sol.x, targets, atol=2e-2)


def test_an_empty_batch():
    sol = minimize(f, DCEM(), torch.zeros(0, 2))
    assert sol.x.shape == (0, 2) and sol.cost.shape == (0,)


# --------------------------------------------------------------------------- randomness, records, restarts


@pytest.mark.parametrize("name", SOLVERS)
def test_the_generator_is_the_only_source_of_randomness(name):
    solver, x0 = SOLVERS[name], torch.zeros(3, 2)
    before = torch.get_rng_state()
    runs = [minimize(f, solver, x0, generator=torch.Generator().manual_seed(s)).x for s in (1, 1, 2)]
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(runs[0], runs[1])
    assert name == "descent" or not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("name", SOLVERS)
def test_given_noise_is_what_the_generator_would_have_drawn(name):
    solver, x0 = SOLVERS[name], torch.zeros(3, 2)
    generator = torch.Generator().manual_seed(5)
    noise = [solver.draw(x0, t, generator) for t in range(solver.n_iters)]
    drawn = minimize(f, solver, x0, generator=torch.Generator().manual_seed(5))
    given = minimize(f, solver, x0, noise=noise)
    assert torch.equal(drawn.x, given.x)
    if name != "descent":
        assert torch.equal(minimize(f, solver, x0, noise=torch.stack(noise)).x, given.x)


@pytest.mark.parametrize("name", SOLVERS)
def test_the_callback_sees_the_records_of_the_trace(name):
    seen = []
    sol = minimize(f, SOLVERS[name], torch.zeros(3, 2), trace=True, callback=seen.append)
    assert len(seen) == len(sol.trace) == 4
    assert all(a is b for a, b in zip(seen, sol.trace, strict=True))


@pytest.mark.parametrize("name", [name for name in SOLVERS if name != "descent"])
def test_a_record_holds_what_happened(name):
    solver = SOLVERS[name]
    sol = minimize(f, solver, torch.zeros(3, 2), trace=True)
    for t, record in enumerate(sol.trace):
        assert record.iteration == t
        assert record.samples.shape == (3, 20, 2)
        assert torch.allclose(record.values, f(record.samples))
        assert record.weights.shape == (3, 20) and record.effective_samples.shape == (3,)
        assert record.mean.shape == record.sigma.shape == (3, 2)
        assert record.n_bad.tolist() == [0, 0, 0]
        order = record.values.argsort(-1)
        assert (record.weights.gather(-1, order).diff() <= 1e-12).all()
    if name not in ("best", "ipop"):
        assert torch.equal(sol.trace[-1].mean, sol.x)


def test_nothing_is_kept_unless_asked_for():
    sol = minimize(f, SOLVERS["soft"], torch.zeros(2))
    assert isinstance(sol, Solution) and sol.trace is None
    assert minimize(f, SOLVERS["soft"], torch.zeros(2), cost=False).cost is None


def test_the_objective_is_called_once_an_iteration_and_once_for_the_cost():
    calls = []
    minimize(lambda x: (calls.append(tuple(x.shape)), f(x))[1], SOLVERS["soft"], torch.zeros(3, 2))
    assert calls == [(3, 20, 2)] * 4 + [(3, 1, 2)]


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solve_goes_on_from_its_state(name):
    solver, x0 = SOLVERS[name], torch.zeros(3, 2)
    noise = noise_for(solver, x0)
    whole = minimize(f, solver, x0, noise=noise)
    half = replace(solver, n_iters=2)
    first = minimize(f, half, x0, noise=noise[:2])
    second = minimize(f, half, first.state, noise=noise[2:])
    assert torch.allclose(second.x, whole.x, atol=1e-12)


def test_gradients_pass_from_one_solve_to_the_next():
    theta = torch.tensor([0.4, -0.3], requires_grad=True)
    noise = torch.randn(4, 20, 2)

    def g(x: Tensor) -> Tensor:
        return sphere(x, theta)

    half = DCEM(n_samples=20, n_elite=5, n_iters=2, tau=0.5)
    first = minimize(g, half, torch.zeros(2), noise=noise[:2])
    (split,) = torch.autograd.grad(minimize(g, half, first.state, noise=noise[2:]).x.sum(), theta)
    (whole,) = torch.autograd.grad(minimize(g, SOLVERS["soft"], torch.zeros(2), noise=noise).x.sum(), theta)
    assert torch.allclose(split, whole, atol=1e-12)

"""Constraints: feasible answers, the order of samples, and derivatives of constrained minima."""

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

import dcem
from dcem import CMAES, DCEM, MPPI, Categorical, FullGaussian, Gaussian, GradientDescent, Product, minimize
from dcem._constraint import scores
from dcem.backward import Checkpoint, Detach, Implicit, Prune, Truncate, Unroll
from problems import sphere

pytestmark = pytest.mark.usefixtures("double")
MODES = [Unroll(), Checkpoint(), Truncate(2), Prune(0.2), Detach()]


def ball(x: Tensor, radius: float | Tensor = 1.0) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1) - radius


def simplex(x: Tensor) -> Tensor:
    """x >= 0, Σ x <= 1."""
    return torch.cat([-x, x.sum(-1, keepdim=True) - 1], dim=-1)


def onto_ball(theta: Tensor) -> Tensor:
    return theta / torch.linalg.vector_norm(theta).clamp_min(1)


def onto_half_space(theta: Tensor) -> Tensor:
    return theta - (theta.sum() - 0.5).relu() / len(theta)


def onto_simplex(theta: Tensor) -> Tensor:
    """By sorting, where Σ x = 1 holds at the answer."""
    u = theta.sort(descending=True).values
    level = (u.cumsum(0) - 1) / torch.arange(1, len(theta) + 1)
    return (theta - level[(u > level).sum() - 1]).relu()


def half_space(x: Tensor) -> Tensor:
    return x.sum(-1) - 0.5


PROJECTIONS = {
    "ball": (ball, onto_ball, torch.tensor([1.5, -0.8, 0.4])),
    "half-space": (half_space, onto_half_space, torch.tensor([0.9, -0.2, 0.7])),
    "simplex": (simplex, onto_simplex, torch.tensor([0.9, -0.4, 0.7])),
    "inactive": (lambda x: ball(x, 3.0), lambda theta: theta, torch.tensor([0.9, -0.4, 0.7])),
}
SOLVERS = {
    "soft": DCEM(n_samples=200, n_elite=20, n_iters=30, tau=1.0),
    "cool": DCEM(n_samples=200, n_elite=20, n_iters=30, tau=0.1),
    "hard": DCEM(n_samples=200, n_elite=20, n_iters=30, tau=0, smoothing=0.3),
    "best": DCEM(n_samples=200, n_elite=20, n_iters=30, returns="best"),
    "full": DCEM(n_samples=200, n_elite=20, n_iters=30, distribution=FullGaussian()),
    "elites": DCEM(n_samples=200, n_elite=20, n_iters=30, keep_elites=5),
    "cma-es": CMAES(n_samples=100, n_iters=60),
    "mppi": MPPI(n_samples=200, n_iters=30, adapt_sigma=True, temperature=0.3),
}


# --------------------------------------------------------------------------- answers


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("problem", PROJECTIONS)
def test_projections(name, problem):
    constraint, solution, theta = PROJECTIONS[problem]
    theta = theta.double()
    sol = minimize(lambda x: sphere(x, theta), SOLVERS[name], torch.zeros(16, 3), constraint=constraint)
    assert (sol.violation == 0).all() and (constraint(sol.x) <= 0).all()
    assert (sol.x - solution(theta)).norm(dim=-1).median() < 0.12


@pytest.mark.parametrize("returns", ["mean", "best"])
@pytest.mark.parametrize("tau", [0, 0.1, 1.0])
def test_the_answer_is_feasible_wherever_a_sample_was(returns, tau):
    """A thin shell, which no mean of its points lies in."""
    shell = lambda x: ball(x).abs() - 0.05  # noqa: E731
    solver = DCEM(n_samples=50, n_iters=5, tau=tau, returns=returns)
    theta = torch.tensor([0.1, 0.2])
    sol = minimize(lambda x: sphere(x, theta), solver, torch.zeros(200, 2), constraint=shell, trace=True)
    found = torch.stack([record.n_feasible for record in sol.trace]).sum(0) > 0
    assert found.any() and torch.equal(sol.violation == 0, found)
    assert (shell(sol.x)[found] <= 0).all()
    values = torch.stack([torch.where(r.violation == 0, r.values, torch.inf).amin(-1) for r in sol.trace])
    sampled = found & (shell(sol.state.phi.mean) > 0) if returns == "mean" else found
    assert sampled.any() and torch.equal(sol.cost[sampled], values.amin(0)[sampled]), "the best feasible one"


def test_where_nothing_is_feasible_the_answer_violates_least():
    sol = minimize(
        lambda x: x.sum(-1),
        DCEM(n_iters=20),
        torch.full((4, 2), 1.0),
        constraint=lambda x: ball(x, -1.0),
        trace=True,
    )
    least = torch.stack([record.violation.amin(-1) for record in sol.trace]).amin(0)
    assert (sol.violation > 1).all() and (sol.violation <= least).all()
    assert sol.x.norm(dim=-1).max() < 0.1, "the search goes to where the violation is least"


def test_a_feasible_region_is_found_from_outside_of_it():
    far = lambda x: (x - 3).norm(dim=-1) - 0.1  # noqa: E731
    solver = DCEM(n_iters=30, distribution=Gaussian(sigma=2.0))
    sol = minimize(lambda x: x.sum(-1), solver, torch.zeros(8, 2), constraint=far)
    assert (sol.violation == 0).all()


@pytest.mark.parametrize("tau", [0, 0.3, 1.0])
def test_an_objective_may_be_undefined_outside(tau):
    theta = torch.tensor(0.3, requires_grad=True)
    f = lambda x: -(x.sum(-1) - theta).log() + x.square().sum(-1)  # noqa: E731
    sol = minimize(
        f,
        DCEM(tau=tau, n_samples=200, n_iters=20),
        torch.full((4, 2), -0.5),
        constraint=lambda x: theta + 0.01 - x.sum(-1),
    )
    assert (sol.violation == 0).all() and sol.x.isfinite().all()
    if tau:
        (gradient,) = torch.autograd.grad(sol.x.sum(), theta)
        assert gradient.isfinite() and gradient != 0


def test_constraints_in_a_discrete_space():
    """The cheapest of what may be chosen, by trying everything."""
    price, weight = torch.rand(9), torch.rand(9)
    grid = torch.stack([torch.eye(3)[list(c)].flatten() for c in itertools.product(range(3), repeat=3)])
    limit = (grid @ weight).median()
    best = torch.where(grid @ weight <= limit, grid @ price, torch.inf).min()
    for tau in (0, 0.1):
        solver = DCEM(distribution=Categorical(3, floor=0.05), tau=tau)
        sol = minimize(lambda x: x @ price, solver, torch.zeros(9), constraint=lambda x: x @ weight - limit)
        assert sol.violation == 0 and sol.cost <= best + 0.3


def test_structured_variables_and_a_state_to_go_on_from():
    f = lambda x: (x["a"] - 1).square().sum(-1) + (x["b"] - 1).square().sum((-1, -2))  # noqa: E731
    g = lambda x: torch.stack([x["a"][..., 0], x["b"].sum((-1, -2))], -1)  # noqa: E731
    x0 = {"a": torch.zeros(3, 2), "b": torch.zeros(3, 2, 2)}
    solver = DCEM(n_iters=10, returns="best")
    sol = minimize(f, solver, x0, constraint=g)
    assert (g(sol.x) <= 0).all() and (sol.x["a"][:, 1] > 0.3).all()
    f = lambda x: sphere(x, torch.ones(2))  # noqa: E731
    first = minimize(f, DCEM(n_iters=2, returns="best"), torch.zeros(3, 2))
    again = minimize(f, solver, first.state, constraint=lambda x: ball(x, 0.9))
    assert (again.violation == 0).all() and (ball(again.x, 0.9) <= 0).all()


def test_the_record_says_what_is_feasible_and_keeps_the_values():
    records = []
    sol = minimize(
        lambda x: x.sum(-1),
        DCEM(n_iters=3),
        torch.zeros(2, 3),
        constraint=ball,
        callback=records.append,
        trace=True,
    )
    for record in (*sol.trace, *records):
        assert torch.equal(record.values, record.samples.sum(-1))
        assert torch.allclose(record.violation, ball(record.samples).relu())
        assert torch.equal(record.n_feasible, (ball(record.samples) <= 0).sum(-1))
    free = minimize(lambda x: x.sum(-1), DCEM(n_iters=3), torch.zeros(2, 3), trace=True)
    assert free.violation is None and free.trace[0].violation is None and free.trace[0].n_feasible is None


# --------------------------------------------------------------------------- the laws of the core


def with_noise(solver, *batch: int, n: int = 2) -> Tensor:
    return torch.randn(
        solver.n_iters, *batch, solver.n_samples, n, generator=torch.Generator().manual_seed(3)
    )


CASES = {
    "soft": DCEM(n_samples=30, n_elite=5, n_iters=4, tau=1.0),
    "hard": DCEM(n_samples=30, n_elite=5, n_iters=4, tau=0),
    "best": DCEM(n_samples=30, n_elite=5, n_iters=4, returns="best"),
    "stopping": DCEM(n_samples=30, n_elite=5, n_iters=12, stop_below=0.1),
    "rows of tau": DCEM(
        n_samples=30, n_elite=5, n_iters=4, tau=torch.tensor([0.2, 0.7, 1.5], dtype=torch.float64)
    ),
    "cma-es": CMAES(n_samples=30, n_iters=4, tau=1.0),
    "mppi": MPPI(n_samples=30, n_iters=4),
    "mixed": DCEM(
        n_samples=30, n_iters=4, tau=1.0, distribution=Product([(Gaussian(), 1), (Gaussian(sigma=0.3), 1)])
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_batch_equals_a_loop(name):
    solver, targets = CASES[name], torch.tensor([[1.0, 1.0], [0.1, 0.2], [-2.0, 0.5]])
    noise = with_noise(solver, 3)
    radius = torch.tensor([0.5, 1.0, 0.01])
    together = minimize(
        lambda x: sphere(x, targets[:, None]),
        solver,
        torch.zeros(3, 2),
        constraint=lambda x: ball(x, radius[:, None]),
        noise=noise,
    )
    for i in range(3):
        own = solver if name != "rows of tau" else DCEM(n_samples=30, n_elite=5, n_iters=4, tau=solver.tau[i])
        alone = minimize(
            lambda x, i=i: sphere(x, targets[i]),
            own,
            torch.zeros(2),
            constraint=lambda x, i=i: ball(x, radius[i]),
            noise=noise[:, i],
        )
        assert torch.allclose(together.x[i], alone.x, atol=1e-9)
        assert torch.allclose(together.violation[i], alone.violation, atol=1e-9)


@pytest.mark.parametrize("name", ["soft", "best", "mppi"])
@pytest.mark.parametrize("mode", MODES[1:], ids=str)
def test_no_mode_changes_the_answer(name, mode):
    theta = torch.tensor([1.0, -0.4], requires_grad=True)
    noise = with_noise(CASES[name], 8)
    one, other = (
        minimize(
            lambda x: sphere(x, theta),
            CASES[name],
            torch.zeros(8, 2),
            constraint=lambda x: ball(x - 0.2 * theta, 0.6),
            noise=noise,
            backward=m,
        )
        for m in (Unroll(), mode)
    )
    assert torch.equal(one.x, other.x) and torch.equal(one.violation, other.violation)


def test_a_temperature_of_almost_zero_is_the_hard_method():
    settings = {"n_samples": 40, "n_elite": 8, "n_iters": 5}
    noise = with_noise(DCEM(**settings), 6)
    hard, cold = (
        minimize(
            lambda x: sphere(x, torch.ones(2)),
            DCEM(tau=tau, **settings),
            torch.zeros(6, 2),
            constraint=ball,
            noise=noise,
            trace=True,
        )
        for tau in (0, 1e-12)
    )
    assert torch.allclose(hard.x, cold.x, atol=1e-6)
    for a, b in zip(hard.trace, cold.trace, strict=True):
        assert torch.allclose(a.weights, b.weights, atol=1e-4)


def test_a_constraint_that_always_holds_changes_nothing():
    for solver in CASES.values():
        batch = (3,)
        noise = with_noise(solver, *batch)
        f = lambda x: sphere(x, torch.tensor([0.4, -0.2]))  # noqa: E731
        free = minimize(f, solver, torch.zeros(3, 2), noise=noise)
        bound = minimize(f, solver, torch.zeros(3, 2), noise=noise, constraint=lambda x: ball(x, 1e6))
        assert torch.equal(free.x, bound.x) and (bound.violation == 0).all()


@given(st.integers(0, 10_000), st.sampled_from([0.0, 1e-6, 1.0]), st.sampled_from([1e-3, 1.0, 1e6]))
def test_scores_are_the_order(seed, shift, scale):
    """Feasible before infeasible, by value; then by violation. Whatever the scale of the values."""
    g = torch.Generator().manual_seed(seed)
    values = scale * (torch.randn(12, generator=g) + 1e3 * shift)
    violation = (torch.randn(12, generator=g)).relu() * scale
    order = scores(values, violation, 0.0).argsort().tolist()
    expected = sorted(
        range(12), key=lambda i: (violation[i] > 0, violation[i] if violation[i] > 0 else values[i])
    )
    assert order == expected


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1.0, 1e9])
def test_one_feasible_sample_is_before_all_others(scale):
    """However little the others violate."""
    values, violation = torch.full((5,), 0.65 * scale), torch.tensor([1e-9, 1.0, 0.0, 1e-6, 0.5])
    found = scores(values, violation, 0.0)
    assert found.argsort().tolist() == [2, 0, 3, 4, 1] and (found[2] < found[0])


@given(st.integers(0, 10_000), st.sampled_from([0.05, 0.3, 1.0, 3.0]))
def test_scores_do_not_jump_where_a_sample_becomes_feasible(seed, softness):
    g = torch.Generator().manual_seed(seed)
    values, violation = torch.randn(12, generator=g), (torch.randn(12, generator=g) + 0.2).relu()
    violation[0] = 0.0
    crossing = violation.clone()
    crossing[0] = 1e-9
    assert torch.allclose(scores(values, violation, softness), scores(values, crossing, softness), atol=1e-5)


@pytest.mark.parametrize("name", ["soft", "mppi", "mixed", "cma-es"])
@pytest.mark.parametrize("mode", [Unroll(), Checkpoint(), Prune(1.0)], ids=str)
@pytest.mark.parametrize("returns", ["mean", "best"])
def test_derivatives_of_a_whole_solve(name, mode, returns):
    """With fixed noise: with respect to what f and g close over, and to x0."""
    solver = dataclasses.replace(CASES[name], returns=returns, n_iters=3)
    noise = with_noise(solver, 2)

    def solve(theta, centre, radius, x0):
        sol = minimize(
            lambda x: torch.cosh(x - theta).sum(-1),
            solver,
            x0,
            constraint=lambda x: torch.stack([ball(x - centre, radius), x[..., 0] - 0.6], -1),
            noise=noise,
            backward=mode,
        )
        return sol.x, sol.cost

    inputs = [torch.tensor([0.9, -0.4]), torch.tensor([0.1, 0.1]), torch.tensor(0.7), 0.3 * torch.randn(2, 2)]
    assert gradcheck(solve, [v.requires_grad_() for v in inputs])


# --------------------------------------------------------------------------- derivatives of minima


@pytest.mark.parametrize("tau", [0.3, 1.0])
@pytest.mark.parametrize("problem", ["ball", "half-space", "inactive"])
def test_the_jacobian_is_that_of_the_projection(problem, tau):
    """Where the answer is a smooth function of theta. Against the derivative of the closed form."""
    constraint, solution, theta = PROJECTIONS[problem]
    theta = theta.double()
    jacobian = torch.func.jacrev(solution)(theta)
    leaf = theta.clone().requires_grad_()
    solver = DCEM(n_samples=400, n_elite=40, n_iters=25, tau=tau)
    rows = 4
    x = minimize(lambda x: sphere(x, leaf), solver, torch.zeros(rows, 3), constraint=constraint).x.mean(0)
    found = torch.stack([torch.autograd.grad(part, leaf, retain_graph=True)[0] for part in x])
    assert (found - jacobian).norm() < 0.15 * jacobian.norm()


@pytest.mark.parametrize("tau", [0.3, 1.0])
def test_gradients_reach_what_only_the_constraint_depends_on(tau):
    """The projection onto a ball of radius r moves outwards with r: ∂x/∂r = theta / |theta|."""
    theta, radius = torch.tensor([1.5, -0.8, 0.4]), torch.tensor(1.0, requires_grad=True)
    solver = DCEM(n_samples=400, n_elite=40, n_iters=25, tau=tau)
    x = minimize(
        lambda x: sphere(x, theta), solver, torch.zeros(4, 3), constraint=lambda x: ball(x, radius)
    ).x.mean(0)
    found = torch.stack([torch.autograd.grad(part, radius, retain_graph=True)[0] for part in x])
    assert (found - theta / theta.norm()).norm() < 0.1


def test_no_gradient_where_the_constraint_is_far_away():
    theta, radius = torch.tensor([0.2, 0.1]), torch.tensor(30.0, requires_grad=True)
    x = minimize(lambda x: sphere(x, theta), DCEM(), torch.zeros(2), constraint=lambda x: ball(x, radius)).x
    assert not x.requires_grad or torch.autograd.grad(x.sum(), radius)[0] == 0


# --------------------------------------------------------------------------- bad values, bad calls


def test_a_constraint_that_is_not_finite_drops_the_sample():
    theta = torch.tensor([0.4, 0.3], requires_grad=True)
    g = lambda x: torch.where(x[..., 0] > 0.2, torch.nan, ball(x))  # noqa: E731
    for tau in (0, 1.0):
        sol = minimize(lambda x: sphere(x, theta), DCEM(tau=tau), torch.zeros(5, 2), constraint=g)
        assert (sol.violation == 0).all() and (sol.x[:, 0] <= 0.2).all()
        if tau:
            assert torch.autograd.grad(sol.x.sum(), theta)[0].isfinite().all()
    with pytest.raises(ValueError, match="f must have a finite value in every row"):
        minimize(lambda x: x.sum(-1), DCEM(), torch.zeros(2), constraint=lambda x: ball(x) * math.nan)


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"constraint": 3}, TypeError, "constraint must be callable, got int"),
        ({"constraint": lambda x: 3}, TypeError, "constraint must return a tensor, got int"),
        (
            {"constraint": lambda x: x.sum()},
            ValueError,
            r"constraint must return c values per sample, .* got shape \(\)",
        ),
        (
            {"constraint": ball, "solver": GradientDescent()},
            ValueError,
            "does not choose among samples, got Gradient",
        ),
        (
            {"constraint": ball, "backward": Implicit()},
            ValueError,
            "constraint must be left out with Implicit",
        ),
    ],
)
def test_a_bad_call_says_what_is_wrong(options, kind, sentence):
    solver = options.pop("solver", DCEM())
    with pytest.raises(kind, match=f"^minimize: .*{sentence}"):
        minimize(lambda x: x.sum(-1), solver, torch.zeros(2), **options)


def test_a_layer_takes_one_too():
    layer = dcem.Argmin(lambda x, y: (y - x).square().sum(-1), DCEM(n_iters=20), n=2)
    sol = layer.solve(torch.tensor([[2.0, 0.0], [0.1, 0.1]]), constraint=ball)
    assert (sol.violation == 0).all() and torch.allclose(sol.x[1], torch.tensor([0.1, 0.1]), atol=0.05)

"""minimize: the loop, its failures, and batches."""

import math

import pytest
import torch
from torch import Tensor

import dcem
from dcem import DCEM, MPPI, FullGaussian, Gaussian, GradientDescent, Solution, minimize
from problems import BOXED, SMOOTH, sphere

pytestmark = pytest.mark.usefixtures("double")
TARGET = torch.tensor([0.4, -0.3], dtype=torch.float64)
SOLVERS = {
    "soft": DCEM(n_samples=20, n_elite=5, n_iters=4, tau=0.5),
    "hard": DCEM(n_samples=20, n_elite=5, n_iters=4, tau=0),
    "best": DCEM(n_samples=20, n_elite=5, n_iters=4, returns="best"),
    "full": DCEM(n_samples=20, n_elite=5, n_iters=4, distribution=FullGaussian()),
    "squash": DCEM(n_samples=20, n_iters=4, distribution=Gaussian(bounds=(-2.0, 2.0), boundary="squash")),
    "elites": DCEM(n_samples=20, n_elite=5, n_iters=4, keep_elites=3),
    "mppi": MPPI(n_samples=20, n_iters=4),
    "descent": GradientDescent(n_iters=4, n_samples=3),
}


def f(x: Tensor) -> Tensor:
    return sphere(x, TARGET) + 0.2 * torch.sin(4 * x).sum(-1)


def noise_for(solver, x0: Tensor) -> list[Tensor | None]:
    return [solver.draw(x0, t, None) for t in range(solver.n_iters)]


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
        distribution = Gaussian(sigma=1.0, bounds=(-1.0, 1.0), boundary=boundary)
        solver = DCEM(n_samples=100, n_elite=5, n_iters=6, tau=0.1, distribution=distribution)
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


# --------------------------------------------------------------------------- values that are not finite


def spoil(x: Tensor, v: Tensor, bad: float, row: int) -> Tensor:
    """Every sample of `row` whose first coordinate is positive has a bad value."""
    mask = (x[..., 0] > 0) & (torch.arange(x.shape[0])[:, None] == row)
    return torch.where(mask, bad, v)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["soft", "hard", "best", "full", "mppi"])
def test_bad_values_get_weight_zero_and_other_rows_are_not_touched(name, bad):
    solver, x0 = SOLVERS[name], torch.full((4, 2), -0.1)
    noise = noise_for(solver, x0)
    clean = minimize(f, solver, x0, noise=noise)
    spoilt = minimize(lambda x: spoil(x, f(x), bad, 2), solver, x0, noise=noise, trace=True)
    others = [0, 1, 3]
    if name in ("hard", "mppi"):
        assert torch.equal(spoilt.x[others], clean.x[others])
    assert torch.allclose(spoilt.x[others], clean.x[others], atol=1e-12)
    for record in spoilt.trace:
        wrong = ~record.values.isfinite()
        assert torch.equal(record.n_bad, wrong.sum(-1))
        assert record.n_bad[others].sum() == 0
        assert (record.weights[wrong] == 0).all()
    assert sum(record.n_bad[2] for record in spoilt.trace) > 0
    assert spoilt.x.isfinite().all()


@pytest.mark.parametrize("name", ["soft", "full", "mppi"])
def test_a_bad_row_is_as_if_its_bad_samples_were_not_there(name):
    """Against a solve of that row alone, so that the batch cannot hide a difference."""
    solver, x0 = SOLVERS[name], torch.full((3, 2), -0.1)
    noise = noise_for(solver, x0)
    together = minimize(lambda x: spoil(x, f(x), math.nan, 1), solver, x0, noise=noise)
    alone = minimize(lambda x: spoil(x, f(x), math.nan, 0), solver, x0[1:2], noise=[e[1:2] for e in noise])
    assert torch.allclose(together.x[1:2], alone.x, atol=1e-9)


@pytest.mark.parametrize("mode", ["Unroll()", "Checkpoint()", "Prune(1.0)", "Prune(0.5)", "Truncate(2)"])
@pytest.mark.parametrize("name", ["soft", "full", "mppi"])
def test_bad_values_leave_gradients_finite(name, mode):
    """The objective takes a root of a negative number, which makes NaN of even a zero gradient."""
    theta = torch.tensor([0.4, -0.3], requires_grad=True)

    def f(x: Tensor) -> Tensor:
        return sphere(x, theta) + 0.1 * torch.sqrt(1 + x[..., 0] * theta[0])  # NaN left of -2.5

    solver, x0 = SOLVERS[name], torch.tensor([[-2.0, 0.0], [0.0, 0.0]], requires_grad=True)
    noise = noise_for(solver, x0)
    sol = minimize(f, solver, x0, noise=noise, trace=True, backward=eval(f"dcem.backward.{mode}"))
    assert sol.trace[0].n_bad[0] > 0
    gradients = torch.autograd.grad(sol.x.sum() + sol.cost.sum(), (theta, x0), allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize(
    ("shape", "row", "words"),
    [
        ((2,), (), r"NaN or infinite, at iteration 0"),
        ((4, 2), (2,), r"in row 2,"),
        ((2, 3, 2), (1, 2), r"in row \(1, 2\),"),
    ],
    ids=str,
)
def test_a_row_without_a_finite_value_is_named(name, shape, row, words):
    def hopeless(x: Tensor) -> Tensor:
        v = f(x)
        mask = torch.zeros_like(v, dtype=torch.bool)
        mask[row] = True
        return torch.where(mask, math.nan, v)

    with pytest.raises(ValueError, match=r"^minimize: f must have a finite value in every row.*" + words):
        minimize(hopeless, SOLVERS[name], torch.zeros(shape))


def test_unchecked_a_hopeless_row_comes_back_as_nan_and_the_others_are_fine():
    def hopeless(x: Tensor) -> Tensor:
        return spoil(torch.ones_like(x), f(x), math.nan, 1)

    x0 = torch.zeros(3, 2)
    noise = noise_for(SOLVERS["soft"], x0)
    sol = minimize(hopeless, SOLVERS["soft"], x0, noise=noise, check=False)
    clean = minimize(f, SOLVERS["soft"], x0, noise=noise)
    assert sol.x[1].isnan().all()
    assert torch.allclose(sol.x[[0, 2]], clean.x[[0, 2]], atol=1e-12)


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
    if name != "best":
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
    settings = {k: getattr(solver, k) for k in solver.__dataclass_fields__}
    half = type(solver)(**{**settings, "n_iters": 2})
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


# --------------------------------------------------------------------------- dtypes, modules, compilation


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_values_follow_the_dtype_of_x0(dtype):
    """A float64 objective, or one that counts, is fine for a float32 search."""
    sol = minimize(lambda x: (100 * f(x)).to(dtype), DCEM(tau=0), torch.zeros(2, dtype=torch.float32))
    assert sol.x.dtype == sol.cost.dtype == torch.float32


def test_a_module_is_an_objective_whose_parameters_get_gradients():
    net = torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1), torch.nn.Flatten(-2)
    )
    sol = minimize(net, DCEM(n_iters=3), torch.zeros(5, 2))
    sol.x.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net[:2].parameters())


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


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of Dynamo's making
def test_a_whole_solve_compiles_into_one_graph():
    theta = torch.tensor([0.4, -0.3], requires_grad=True)
    solver = DCEM(n_samples=20, n_elite=5, n_iters=2)
    noise = torch.randn(2, 3, 20, 2)

    def solve(x0: Tensor, noise: Tensor) -> Tensor:
        return minimize(lambda x: sphere(x, theta), solver, x0, noise=noise).x

    compiled = torch.compile(solve, fullgraph=True, backend="aot_eager")
    x, expected = compiled(torch.zeros(3, 2), noise), solve(torch.zeros(3, 2), noise)
    assert torch.allclose(x, expected, atol=1e-9)
    gradients = [torch.autograd.grad(y.square().sum(), theta)[0] for y in (x, expected)]
    assert torch.allclose(*gradients, atol=1e-9)


def test_torch_func_grad_passes_through_a_solve():
    noise = torch.randn(4, 3, 20, 2)

    def loss(theta: Tensor) -> Tensor:
        return minimize(lambda x: sphere(x, theta), SOLVERS["soft"], torch.zeros(3, 2), noise=noise).x.sum()

    theta = TARGET.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(theta), theta)
    assert torch.allclose(torch.func.grad(loss)(TARGET), expected, atol=1e-12)


# --------------------------------------------------------------------------- bad calls

X0 = torch.zeros(3, 2)
BOX = Gaussian(bounds=(-1.0, 1.0))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: minimize(3, DCEM(), X0), TypeError, r"f must be callable, got int"),
        (lambda: minimize(f, DCEM, X0), TypeError, r"solver must be a solver such as DCEM\(\), got <class"),
        (lambda: minimize(f, None, X0), TypeError, r"solver must be a solver such as DCEM\(\), got None"),
        (lambda: minimize(f, DCEM(), [0.0, 0.0]), TypeError, r"x0 must be a tensor or .*, got list"),
        (lambda: minimize(f, DCEM(), (1, 2)), TypeError, r"x0 must be a tensor or .*, got tuple"),
        (lambda: minimize(f, DCEM(), X0.long()), ValueError, r"x0 must be a floating-point .* torch.int64"),
        (lambda: minimize(f, DCEM(), X0[0, 0]), ValueError, r"x0 must be .* of shape \(\*B, n\), .*\(\)"),
        (lambda: minimize(lambda x: 1.0, DCEM(), X0), TypeError, r"f must return a tensor, got float"),
        (
            lambda: minimize(lambda x: x, DCEM(), X0),
            ValueError,
            r"f must return one value a sample, shape \(3, 100\) for samples of shape \(3, 100, 2\), "
            r"got shape \(3, 100, 2\)",
        ),
        (lambda: minimize(lambda x: f(x).mean(), DCEM(), X0), ValueError, r"f must return .*got shape \(\)"),
        (lambda: minimize(f, DCEM(), X0, noise=[X0]), ValueError, r"noise must hold one .* \(10\), got 1"),
        (
            lambda: minimize(f, DCEM(n_iters=1), X0, noise=torch.zeros(1, 100, 2)),
            ValueError,
            r"noise must have shape \(3, N, 2\) in every iteration, for x0 of shape \(3, 2\), got \(100, 2\)",
        ),
        (
            lambda: minimize(f, DCEM(n_iters=1), X0, noise=torch.zeros(1, 3, 100, 1)),
            ValueError,
            r"noise must have shape \(3, N, 2\)",
        ),
        (lambda: minimize(f, DCEM(), X0, backward="unroll"), TypeError, r"backward must be a mode such as"),
        (lambda: minimize(f, DCEM(), X0, backward=dcem.backward.Detach), TypeError, r"backward must be a"),
        (
            lambda: minimize(f, DCEM(distribution=BOX), X0 + torch.tensor([[0.0], [0.0], [2.0]])),
            ValueError,
            r"x0 must lie within the bounds \(-1.0, 1.0\) in row 2",
        ),
        (lambda: minimize(f, DCEM(distribution=BOX), X0[0] - 3), ValueError, r"x0 must lie within"),
        (lambda: minimize(f, DCEM(distribution=BOX), X0 * math.nan), ValueError, r"x0 must lie .* row 0"),
    ],
)  # fmt: skip
def test_a_bad_call_says_what_is_wrong(call, error, words):
    with pytest.raises(error, match="^minimize: " + words):
        call()


@pytest.mark.parametrize("n_samples", [5, 50, 200])
def test_noise_with_another_number_of_samples_says_so(n_samples):
    with pytest.raises(ValueError, match=r"noise|n_samples"):
        minimize(f, DCEM(n_iters=1), X0, noise=torch.zeros(1, 3, n_samples, 2))


@pytest.mark.parametrize("setting", ["tau", "n_elite", "smoothing"])
def test_a_setting_for_another_number_of_rows_says_so(setting):
    with pytest.raises(ValueError, match=setting):
        minimize(f, DCEM(**{setting: torch.full((4,), 0.5)}), X0)


def test_a_generator_on_another_device_says_so():
    class Elsewhere:
        device = torch.device("meta")

    with pytest.raises(
        ValueError, match=r"^minimize: generator must be on cpu, where x0 is, got one on meta"
    ):
        minimize(f, DCEM(), X0, generator=Elsewhere())


@pytest.mark.parametrize(
    "distribution", [Gaussian(), FullGaussian(), Gaussian(bounds=(-9.0, 9.0), boundary="truncate")]
)
def test_autocast_reaches_the_objective_and_nothing_else(distribution):
    seen = []

    def objective(x):
        seen.append((x @ torch.eye(2, dtype=x.dtype)).dtype)
        return x.square().sum(-1)

    with torch.autocast("cpu", torch.bfloat16):
        sol = minimize(objective, DCEM(n_iters=2, distribution=distribution), torch.zeros(3, 2).float())
    assert set(seen) == {torch.bfloat16}
    assert sol.x.dtype == sol.cost.dtype == torch.float32


@pytest.mark.parametrize("tau", [0.0, 0.1, 1.0])
def test_a_whole_solve_under_vmap(tau, double):
    noise = torch.randn(3, 20, 2)

    def solve(centre):
        solver = DCEM(n_samples=20, n_elite=5, n_iters=3, tau=tau)
        return minimize(lambda x: (x - centre).square().sum(-1), solver, torch.zeros(2), noise=noise).x

    centres = torch.randn(4, 2)
    looped = torch.stack([solve(centre) for centre in centres])
    torch.testing.assert_close(torch.func.vmap(solve)(centres), looped, rtol=0, atol=1e-9)
    if tau > 0:
        jacobians = torch.stack([torch.func.jacrev(solve)(centre) for centre in centres])
        torch.testing.assert_close(torch.func.vmap(torch.func.jacrev(solve))(centres), jacobians)

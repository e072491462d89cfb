"""minimize: values that are not finite, and bad calls."""

import math

import pytest
import torch
from torch import Tensor

import dcem
from dcem import DCEM, Gaussian, minimize
from problems import sphere
from solver_cases import SOLVERS, f, noise_for

pytestmark = pytest.mark.usefixtures("double")

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


# --------------------------------------------------------------------------- bad calls

X0 = torch.zeros(3, 2)
BOX = Gaussian(bounds=(-1.0, 1.0))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: minimize(3, DCEM(), X0), TypeError, r"f must be callable, got int"),
        (lambda: minimize(f, DCEM, X0), TypeError, r"solver must be a solver such as DCEM\(\), got <class"),
        (lambda: minimize(f, None, X0), TypeError, r"solver must be a solver such as DCEM\(\), got None"),
        (lambda: minimize(f, DCEM(), [0.0, 0.0]), TypeError, r"x0 must be a tensor, .*, got"),
        (lambda: minimize(f, DCEM(), (1, 2)), TypeError, r"x0 must be a tensor, .*, got"),
        (lambda: minimize(f, DCEM(), X0.long()), ValueError, r"x0 must be a floating-point .* torch.int64"),
        (lambda: minimize(f, DCEM(), X0[0, 0]), ValueError, r"x0 must be .* of shape \(\*B, n\), .*\(\)"),
        (lambda: minimize(lambda x: 1.0, DCEM(), X0), TypeError, r"f must return a tensor, got float"),
        (lambda: minimize(lambda x: 1j * f(x), DCEM(), X0), TypeError, r"f must return real numbers, got"),
        (
            lambda: minimize(lambda x: x, DCEM(), X0),
            ValueError,
            r"f must return one value per sample, shape \(3, 100\) for samples of shape \(3, 100, 2\), "
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


def test_a_seed_is_no_generator():
    with pytest.raises(TypeError, match=r"^minimize: generator must be a torch.Generator, got 0"):
        minimize(f, DCEM(), X0, generator=0)


def test_a_generator_on_another_device_says_so():
    class Elsewhere:
        device = torch.device("meta")

    with pytest.raises(
        ValueError, match=r"^minimize: generator must be on cpu, where x0 is, got one on meta"
    ):
        minimize(f, DCEM(), X0, generator=Elsewhere())

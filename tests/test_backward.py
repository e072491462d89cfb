"""The ways to differentiate a solve."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from dcem import DCEM, MPPI, FullGaussian, Gaussian, GradientDescent, _native, minimize
from dcem.backward import Checkpoint, Detach, Prune, Truncate, Unroll
from problems import sphere

pytestmark = pytest.mark.usefixtures("double")
EXACT = {"Unroll": Unroll(), "Checkpoint": Checkpoint(), "Truncate": Truncate(2), "Prune": Prune(1.0)}
PAPER = {"tau": 1.0, "normalize": True, "distribution": Gaussian(estimator="likelihood")}
BOUNDS = (-1.2, 1.3)
FAMILIES = {
    "diagonal": lambda sigma: Gaussian(sigma=sigma),
    "diagonal, clamp": lambda sigma: Gaussian(sigma=sigma, bounds=BOUNDS),
    "diagonal, truncate": lambda sigma: Gaussian(sigma=sigma, bounds=BOUNDS, boundary="truncate"),
    "diagonal, squash": lambda sigma: Gaussian(sigma=sigma, bounds=BOUNDS, boundary="squash"),
    "full": lambda sigma: FullGaussian(sigma=sigma),
    "full, clamp": lambda sigma: FullGaussian(sigma=sigma, bounds=BOUNDS),
    "full, squash": lambda sigma: FullGaussian(sigma=sigma, bounds=BOUNDS, boundary="squash"),
}


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("returns", ["mean", "best"])
def test_first_and_second_derivatives_of_a_whole_solve(family, mode, returns):
    """With fixed noise, with respect to the objective's parameters, x0, sigma, tau and the smoothing."""
    noise = 1.2 * torch.randn(2, 2, 5, 2)

    def solve(theta, x0, sigma, tau, smoothing):
        solver = DCEM(
            n_samples=5,
            n_elite=2,
            n_iters=2,
            tau=tau,
            smoothing=smoothing,
            returns=returns,
            distribution=FAMILIES[family](sigma),
        )
        sol = minimize(lambda x: torch.cosh(x - theta).sum(-1), solver, x0, noise=noise, backward=EXACT[mode])
        return sol.x, sol.cost

    theta, x0 = torch.randn(2), 0.5 * torch.randn(2, 2)
    settings = torch.tensor([0.7, 0.9]), torch.tensor(0.8), torch.tensor(0.2)
    inputs = [v.requires_grad_() for v in (theta, x0, *settings)]
    assert gradcheck(solve, inputs)
    if returns == "mean":
        assert gradgradcheck(solve, inputs)


@pytest.mark.parametrize("mode", EXACT)
def test_derivatives_without_normalising(mode):
    noise = torch.randn(2, 5, 2)

    def solve(theta):
        solver = DCEM(n_samples=5, n_elite=2, n_iters=2, tau=1.0, normalize=False)
        f = lambda x: torch.cosh(x - theta).sum(-1)  # noqa: E731
        return minimize(f, solver, torch.zeros(2), noise=noise, backward=EXACT[mode]).x

    theta = torch.randn(2, requires_grad=True)
    assert gradcheck(solve, theta) and gradgradcheck(solve, theta)


GRAPHS = {
    "weights and moments in one": DCEM(n_samples=7, n_elite=2, n_iters=2, tau=1.0),
    "in two": DCEM(n_samples=7, n_elite=2, n_iters=2, tau=1.0, normalize=False),
    "temperature from the values": DCEM(n_samples=7, n_elite=2, n_iters=2, ess=4),
    "softmax": MPPI(n_samples=7, n_iters=2, adapt_sigma=True),
    "likelihood": DCEM(n_samples=7, n_elite=2, n_iters=2, **PAPER),
}


@pytest.mark.parametrize("native", [True, False], ids=["native", "plain"])
@pytest.mark.parametrize("solver", GRAPHS.values(), ids=GRAPHS)
def test_a_gradient_with_a_graph_is_the_gradient(monkeypatch, solver, native):
    """Values depend on samples, and samples on the last mean: each must pass its gradient on only once."""
    if not native:
        monkeypatch.setattr(_native, "kernels", dict)
    theta, x0 = torch.randn(3, requires_grad=True), 0.1 * torch.randn(2, 3, requires_grad=True)
    noise = torch.randn(2, 2, 7, 3)
    x = minimize(lambda x: torch.cosh(x - theta).sum(-1), solver, x0, noise=noise, cost=False).x
    plain = torch.autograd.grad(x.square().sum(), (theta, x0), retain_graph=True)
    with_graph = torch.autograd.grad(x.square().sum(), (theta, x0), create_graph=True)
    torch.testing.assert_close(with_graph, plain)


# --------------------------------------------------------------------------- modes against each other


class Task:
    """A small network as the objective; the gradient of a weighted sum of the answer."""

    def __init__(self, hidden: int = 16, n_iters: int = 6, n_samples: int = 40, dtype=torch.float64) -> None:
        g = torch.Generator().manual_seed(1)
        self.parameters = [
            torch.randn(3, hidden, generator=g, dtype=dtype).requires_grad_(),
            torch.randn(hidden, 1, generator=g, dtype=dtype).requires_grad_(),
        ]
        self.noise = torch.randn(n_iters, 4, n_samples, 3, generator=g, dtype=dtype)
        self.solver = DCEM(n_samples=n_samples, n_elite=8, n_iters=n_iters, **PAPER)
        self.calls: list[tuple[int, ...]] = []

    def f(self, x: Tensor) -> Tensor:
        self.calls.append(tuple(x.shape))
        first, second = self.parameters
        return (torch.tanh(x @ first) @ second).squeeze(-1) + 0.5 * x.square().sum(-1)

    def solve(self, mode: Unroll, **options):
        x0 = torch.zeros(4, 3, dtype=self.noise.dtype)
        return minimize(self.f, self.solver, x0, noise=self.noise, backward=mode, **options)

    def gradient(self, mode: Unroll) -> Tensor:
        x = self.solve(mode).x
        weight = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape)
        return torch.cat([g.flatten() for g in torch.autograd.grad((x * weight).sum(), self.parameters)])


@pytest.mark.parametrize("mode", [Checkpoint(), Truncate(6), Truncate(100), Prune(1.0)], ids=str)
def test_exact_modes_equal_unroll(mode):
    task = Task()
    assert torch.allclose(task.solve(mode).x, task.solve(Unroll()).x, atol=1e-12)
    assert torch.allclose(task.gradient(mode), task.gradient(Unroll()), atol=1e-12)


@pytest.mark.parametrize("mode", [Checkpoint(), Truncate(1), Prune(0.1), Prune(0.5), Detach()], ids=str)
def test_no_mode_changes_the_answer(mode):
    task = Task()
    exact, sol = task.solve(Unroll(), trace=True), task.solve(mode, trace=True)
    assert torch.allclose(sol.x, exact.x, atol=1e-12) and torch.allclose(sol.cost, exact.cost, atol=1e-12)
    for a, b in zip(sol.trace, exact.trace, strict=True):
        assert torch.allclose(a.values, b.values, atol=1e-12)


def cosine(a: Tensor, b: Tensor) -> float:
    return torch.nn.functional.cosine_similarity(a, b, dim=0).item()


def test_pruning_keeps_the_direction_of_the_gradient():
    task = Task(n_samples=100)
    exact = task.gradient(Unroll())
    assert cosine(task.gradient(Prune(0.3)), exact) > 0.9
    assert cosine(task.gradient(Prune(0.6)), exact) > cosine(task.gradient(Prune(0.05)), exact)


def test_pruning_keeps_the_most_influential():
    """Better than as many samples at random, and than the lowest values alone would need to be."""
    task = Task(n_samples=100)
    exact = task.gradient(Unroll())

    class Random(Prune):
        def evaluate(self, f, x, influence):
            return super().evaluate(f, x, torch.rand_like)

    chosen = (task.gradient(Prune(0.3)) - exact).norm()
    assert all(chosen < (task.gradient(Random(0.3)) - exact).norm() for _ in range(5))


def test_truncation_tends_to_the_whole():
    task = Task()
    exact = task.gradient(Unroll())
    errors = [(task.gradient(Truncate(n)) - exact).norm().item() for n in (1, 3, 5, 6)]
    assert errors[0] > errors[2] > errors[3] and errors[3] < 1e-12


def test_truncation_equals_restarting_from_a_constant_state():
    task = Task()
    early = DCEM(n_samples=40, n_elite=8, n_iters=4, **PAPER)
    late = DCEM(n_samples=40, n_elite=8, n_iters=2, **PAPER)
    with torch.no_grad():
        state = minimize(task.f, early, torch.zeros(4, 3), noise=task.noise[:4]).state
    x = minimize(task.f, late, state, noise=task.noise[4:]).x
    weight = torch.linspace(-1, 1, x.numel()).reshape(x.shape)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad((x * weight).sum(), task.parameters)])
    assert torch.allclose(task.gradient(Truncate(2)), expected, atol=1e-12)


def test_truncation_and_detachment_pass_nothing_to_x0():
    for mode in (Truncate(1), Detach()):
        x0 = torch.zeros(2, requires_grad=True)
        sol = minimize(lambda x: sphere(x, torch.ones(2)), DCEM(n_iters=3), x0, backward=mode)
        assert not sol.x.requires_grad


@pytest.mark.parametrize(
    "solver", [DCEM(n_iters=3), DCEM(n_iters=3, returns="best"), MPPI(n_iters=3)], ids=str
)
def test_detach_gives_a_constant_x_whose_cost_still_depends_on_the_objective(solver):
    """d cost / d theta at fixed x: min-differentiation."""
    theta = torch.tensor([0.4, -0.3], requires_grad=True)
    sol = minimize(lambda x: sphere(x, theta), solver, torch.zeros(2, requires_grad=True), backward=Detach())
    assert not sol.x.requires_grad
    (gradient,) = torch.autograd.grad(sol.cost, theta)
    assert torch.allclose(gradient, 2 * (theta - sol.x).detach())


# --------------------------------------------------------------------------- cost


def saved(task: Task, mode: Unroll) -> int:
    """Numbers kept for the backward by the solve's iterations."""
    kept = 0

    def pack(x: Tensor) -> Tensor:
        nonlocal kept
        kept += x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        task.solve(mode, cost=False)
    return kept


def test_what_every_mode_keeps_for_the_backward():
    task = Task(hidden=64, n_iters=10, n_samples=100)
    everything = saved(task, Unroll())
    assert saved(task, Detach()) == 0
    assert saved(task, Checkpoint()) < 0.05 * everything
    for n in (1, 3, 5):
        assert math.isclose(saved(task, Truncate(n)) / everything, n / 10, rel_tol=0.1)
    # The solver's own tensors are kept whole; the objective's, most of them here, only for the chosen.
    assert saved(task, Prune(0.1)) < 0.25 * everything
    assert saved(task, Prune(0.3)) < 0.45 * everything


def test_memory_of_a_checkpointed_solve_does_not_grow_with_the_objective():
    narrow, wide = (saved(Task(hidden=hidden, n_iters=5), Checkpoint()) for hidden in (4, 64))
    assert narrow == wide


def test_how_often_every_mode_calls_the_objective():
    def calls(mode: Unroll) -> list[tuple[int, ...]]:
        task = Task(n_samples=40)
        x = task.solve(mode, cost=False).x
        if x.requires_grad:
            torch.autograd.grad(x.sum(), task.parameters)
        return task.calls

    all_samples, few = (4, 40, 3), (4, 8, 3)
    assert calls(Unroll()) == calls(Truncate(2)) == calls(Detach()) == [all_samples] * 6
    assert calls(Checkpoint()) == [all_samples] * 12
    assert calls(Prune(0.2)) == [all_samples, few] * 6


@pytest.mark.parametrize("mode", [Unroll(), Checkpoint(), Truncate(1), Prune(0.5), Detach()], ids=str)
def test_without_gradients_nothing_is_evaluated_twice(mode):
    task = Task()
    with torch.no_grad():
        sol = task.solve(mode, cost=False)
    assert len(task.calls) == 6 and not sol.x.requires_grad


# --------------------------------------------------------------------------- with other features


@pytest.mark.parametrize("mode", [Checkpoint(), Truncate(20), Prune(1.0)], ids=str)
def test_exact_modes_with_early_stopping(mode):
    theta = torch.tensor([[0.0, 0.0], [2.0, -1.0]], requires_grad=True)
    noise = torch.randn(20, 2, 30, 2)
    solver = DCEM(n_samples=30, n_iters=20, stop_below=0.05)

    def gradient(mode: Unroll) -> Tensor:
        f = lambda x: sphere(x, theta[:, None])  # noqa: E731
        x = minimize(f, solver, torch.zeros(2, 2), noise=noise, backward=mode).x
        return torch.autograd.grad(x.sum(), theta)[0]

    assert torch.allclose(gradient(mode), gradient(Unroll()), atol=1e-12)


def test_truncation_is_refused_where_nobody_knows_which_iterations_are_the_last():
    solver = DCEM(n_iters=10, stop_below=0.05)
    with pytest.raises(ValueError, match=r"^minimize: backward must not be Truncate .* got Truncate\(n=3\)"):
        minimize(lambda x: sphere(x, torch.ones(2)), solver, torch.zeros(2), backward=Truncate(3))


@pytest.mark.parametrize("mode", [Checkpoint(), Prune(1.0)], ids=str)
@pytest.mark.parametrize(
    "solver", [DCEM(n_samples=30, n_iters=4), MPPI(n_samples=30, n_iters=4)], ids=["DCEM", "MPPI"]
)
def test_exact_modes_with_values_that_are_not_finite(mode, solver):
    """Half of row 1 has no value: the gradient must be that of Unroll, not a multiple of it."""
    noise = torch.randn(4, 2, 30, 2)

    def gradient(mode: Unroll) -> Tensor:
        theta = torch.tensor([0.4, -0.3], requires_grad=True)

        def f(x: Tensor) -> Tensor:
            bad = (x[..., 0] > 0) & (torch.arange(2)[:, None] == 1)
            return torch.where(bad, math.nan, sphere(x, theta))

        x = minimize(f, solver, torch.full((2, 2), -0.1), noise=noise, backward=mode).x
        return torch.stack([torch.autograd.grad(row.sum(), theta, retain_graph=True)[0] for row in x])

    assert torch.allclose(gradient(mode), gradient(Unroll()), atol=1e-10)


def test_pruning_a_hard_solve():
    """No weight has a slope at tau = 0: nothing is influential, and nothing breaks."""
    theta = torch.tensor([0.4, -0.3], requires_grad=True)
    x0 = torch.zeros(2, requires_grad=True)
    sol = minimize(lambda x: sphere(x, theta), DCEM(tau=0, n_iters=3), x0, backward=Prune(0.2))
    (gradient,) = torch.autograd.grad(sol.x.sum(), x0)
    assert gradient.isfinite().all()


def test_checkpoint_replays_a_random_objective():
    theta = torch.tensor([0.4, -0.3], requires_grad=True)

    def gradient(mode: Unroll) -> Tensor:
        torch.manual_seed(0)
        noise = torch.randn(3, 20, 2)
        f = lambda x: sphere(x, theta * (1 + 0.1 * torch.randn(2)))  # noqa: E731
        x = minimize(f, DCEM(n_samples=20, n_iters=3), torch.zeros(2), noise=noise, backward=mode).x
        return torch.autograd.grad(x.sum(), theta)[0]

    assert torch.allclose(gradient(Checkpoint()), gradient(Unroll()), atol=1e-12)


def test_gradient_descent_keeps_the_graph_of_all_its_points_when_pruned():
    theta = torch.tensor([0.4, -0.3], requires_grad=True)
    noise = [torch.randn(2, 4, 2), None, None]

    def gradient(mode: Unroll) -> Tensor:
        solver = GradientDescent(n_samples=5, n_iters=3)
        x = minimize(
            lambda x: torch.cosh(x - theta).sum(-1), solver, torch.zeros(2, 2), noise=noise, backward=mode
        ).x
        return torch.autograd.grad(x.sum(), theta)[0]

    assert torch.allclose(gradient(Prune(0.2)), gradient(Unroll()), atol=1e-12)


@pytest.mark.parametrize("n", [0, -1, 2.0, "3"])
def test_a_bad_truncation_says_what_is_wrong(n):
    with pytest.raises(ValueError, match=r"^Truncate: n must be a positive integer, got"):
        Truncate(n)


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, math.nan])
def test_a_bad_fraction_says_what_is_wrong(fraction):
    with pytest.raises(ValueError, match=r"^Prune: fraction must satisfy 0 < fraction <= 1, got"):
        Prune(fraction)

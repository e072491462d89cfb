"""minimize within PyTorch: dtypes, autocast, modules, function transforms and compilation."""

import pytest
import torch
from torch import Tensor

from dcem import DCEM, FullGaussian, Gaussian, capture, minimize
from problems import sphere
from solver_cases import SOLVERS, TARGET, f

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_values_follow_the_dtype_of_x0(dtype):
    """A float64 objective, or one that counts, is fine for a float32 search."""
    sol = minimize(lambda x: (100 * f(x)).to(dtype), DCEM(tau=0), torch.zeros(2, dtype=torch.float32))
    assert sol.x.dtype == sol.cost.dtype == torch.float32


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


def test_a_module_is_an_objective_whose_parameters_get_gradients():
    net = torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1), torch.nn.Flatten(-2)
    )
    sol = minimize(net, DCEM(n_iters=3), torch.zeros(5, 2))
    sol.x.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net[:2].parameters())


def test_torch_func_grad_passes_through_a_solve():
    noise = torch.randn(4, 3, 20, 2)

    def loss(theta: Tensor) -> Tensor:
        return minimize(lambda x: sphere(x, theta), SOLVERS["soft"], torch.zeros(3, 2), noise=noise).x.sum()

    theta = TARGET.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(theta), theta)
    assert torch.allclose(torch.func.grad(loss)(TARGET), expected, atol=1e-12)


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


def test_a_compiler_that_fails_is_no_error(monkeypatch):
    def fail(*_: object) -> None:
        raise AssertionError("inside of the compiler")

    monkeypatch.setattr(torch, "compile", lambda f, **_: fail)
    solve = capture(lambda x0: minimize(lambda x: sphere(x, TARGET), DCEM(n_iters=20), x0).x)
    with pytest.warns(
        UserWarning, match="solves run uncompiled, as torch cannot compile them: inside of the"
    ):
        assert (solve(torch.ones(2)) - TARGET).abs().max() < 0.1

"""Discrete spaces and constraints on a GPU: no waiting for the device, and whole solves as CUDA graphs."""

import pytest
import torch
from torch import Tensor

import dcem

pytestmark = pytest.mark.gpu
MIXED = dcem.Product(
    [(dcem.Categorical(3), 3), (dcem.Bernoulli(), 1), (dcem.Gaussian(sigma=0.5, bounds=(-1.0, 1.0)), 2)]
)
SOLVERS = {
    "soft": dcem.DCEM(n_samples=64, n_elite=8, n_iters=5, distribution=MIXED),
    "hard": dcem.DCEM(n_samples=64, n_elite=8, n_iters=5, tau=0, distribution=MIXED),
    "best": dcem.DCEM(n_samples=64, n_elite=8, n_iters=5, distribution=MIXED, returns="best"),
    "mppi": dcem.MPPI(n_samples=64, n_iters=5, distribution=MIXED),
}


def f(x: Tensor) -> Tensor:
    return (x - torch.arange(6, device=x.device) / 6).square().sum(-1)


def g(x: Tensor) -> Tensor:
    return x[..., 4:] - 0.3


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", SOLVERS)
def test_nothing_waits_for_the_device(name: str) -> None:
    x0 = torch.full((3, 6), 0.5, device="cuda")
    dcem.minimize(f, SOLVERS[name], x0, constraint=g)  # kernels are compiled at their first use
    torch.cuda.set_sync_debug_mode("error")
    try:
        sol = dcem.minimize(f, SOLVERS[name], x0, constraint=g)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (sol.violation == 0).all() and (g(sol.x) <= 0).all()


@pytest.mark.parametrize("name", SOLVERS)
def test_replay_equals_eager(name: str) -> None:
    def solve(x0: Tensor, noise: Tensor) -> tuple[Tensor, Tensor | None]:
        sol = dcem.minimize(f, SOLVERS[name], x0, noise=noise, constraint=g)
        return sol.x, sol.violation

    captured = dcem.capture(solve)
    for _ in range(3):
        x0 = torch.rand(3, 6, device="cuda")
        noise = torch.randn(5, 3, 64, 6, device="cuda")
        for found, expected in zip(captured(x0, noise), solve(x0, noise), strict=True):
            torch.testing.assert_close(found, expected)


def test_the_answer_is_that_of_the_cpu() -> None:
    x0, noise = torch.rand(3, 6), torch.randn(5, 3, 64, 6)
    for solver in SOLVERS.values():
        here = dcem.minimize(f, solver, x0, noise=noise, constraint=g)
        there = dcem.minimize(f, solver, x0.cuda(), noise=noise.cuda(), constraint=g)
        torch.testing.assert_close(there.x.cpu(), here.x, rtol=1e-3, atol=1e-3)

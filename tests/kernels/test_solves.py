"""Whole solves with the fused kernels equal those in plain torch; on CUDA alone."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

import dcem
from dcem import _native
from dcem.distributions import fused, samples_triton
from dcem.distributions.gaussian import GaussianState
from dcem.solvers import refit_triton
from dcem.solvers.refit import refit_by_kernel

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of numpy, which does not expect infinities
]
PAPER = {"tau": 1.0, "normalize": True, "distribution": dcem.Gaussian(estimator="likelihood")}
SOLVERS = {
    "paper": dcem.DCEM(n_samples=20, n_elite=4, n_iters=3, **PAPER),
    "default": dcem.DCEM(n_samples=20, n_elite=4, n_iters=3),
    "cold": dcem.DCEM(n_samples=20, n_elite=4, n_iters=3, tau=1e-3, smoothing=0.2, widen=1.1),
    "unscaled": dcem.DCEM(n_samples=20, n_elite=4, n_iters=3, tau=0.5, normalize=False),
    "hard": dcem.DCEM(n_samples=20, n_elite=4, n_iters=3, tau=0),
    "box": dcem.DCEM(n_samples=20, n_elite=4, n_iters=3, distribution=dcem.Gaussian(bounds=(-1.0, 0.5))),
    "squash": dcem.DCEM(
        n_samples=20, n_elite=4, n_iters=3, distribution=dcem.Gaussian(bounds=(-1.0, 0.5), boundary="squash")
    ),
    "elites": dcem.DCEM(n_samples=20, n_elite=4, n_iters=3, keep_elites=2, returns="best"),
    "mppi": dcem.MPPI(n_samples=20, n_iters=3),
}


def solved(solver: dcem.DCEM | dcem.MPPI, order: int = 1) -> list[Tensor]:
    """The solution and the gradients of it, and of their sum."""
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 2, 20, 3, generator=g, dtype=torch.float64)
    x0, centre = (0.3 * torch.randn(2, 3, generator=g, dtype=torch.float64) for _ in range(2))
    x0.requires_grad_(), centre.requires_grad_()

    def f(x: Tensor) -> Tensor:
        return (x - centre.unsqueeze(-2)).square().sum(-1) + x.sin().sum(-1)

    x = dcem.minimize(f, solver, x0, noise=noise).x
    found = [x]
    for _ in range(order):
        total = (found[-1] * torch.linspace(1, 2, 6, dtype=x.dtype).view(2, 3)).sum()
        found += torch.autograd.grad(total, [x0, centre], create_graph=order > 1, materialize_grads=True)
    return [y.detach() for y in found]


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solve_and_its_gradients(monkeypatch, name):
    found = solved(SOLVERS[name])
    monkeypatch.setattr(fused, "DEVICES", ())
    monkeypatch.setattr(_native, "kernels", dict)
    torch.testing.assert_close(found, solved(SOLVERS[name]), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", ["paper", "default"])
def test_second_derivatives(monkeypatch, name):
    found = solved(SOLVERS[name], order=2)
    monkeypatch.setattr(fused, "DEVICES", ())
    torch.testing.assert_close(found, solved(SOLVERS[name], order=2), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["paper", "default", "unscaled", "box"])
def test_without_gradients(monkeypatch, name):
    with torch.no_grad():
        found = _solution(SOLVERS[name])
        monkeypatch.setattr(fused, "DEVICES", ())
        torch.testing.assert_close(found, _solution(SOLVERS[name]))


def _solution(solver: dcem.DCEM) -> Tensor:
    noise = torch.randn(3, 20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x0 = torch.zeros(3, dtype=torch.float64)
    return dcem.minimize(lambda x: (x - 0.3).square().sum(-1), solver, x0, noise=noise).x


@pytest.mark.parametrize(("devices", "launched"), [(("cpu",), True), (("cuda",), False)])
def test_they_run_on_their_devices_alone(monkeypatch, devices, launched):
    count = []
    for module in (refit_triton, samples_triton):
        kernel = module.forward
        monkeypatch.setattr(module, "forward", lambda *a, kernel=kernel: count.append(1) or kernel(*a))
    monkeypatch.setattr(fused, "DEVICES", devices)
    solved(SOLVERS["paper"])
    assert len(count) == 6 * launched  # one of each in every iteration


def test_more_samples_than_fit_are_refitted_in_two_steps(monkeypatch):
    expected = solved(SOLVERS["paper"])
    monkeypatch.setattr(refit_triton, "MAX_SAMPLES", 19)
    monkeypatch.setattr(refit_triton, "forward", lambda *_: pytest.fail("too many for the kernel"))
    torch.testing.assert_close(solved(SOLVERS["paper"]), expected, rtol=1e-7, atol=1e-8)


def test_numbers_of_two_types_or_devices_are_refitted_in_two_steps():
    u, values, mean = torch.zeros(2, 20, 3), torch.rand(2, 20), torch.zeros(2, 3)
    elite = 4, 1.0, True

    def refitted(values: Tensor, mean: Tensor) -> object:
        phi = GaussianState(mean, torch.ones_like(mean))
        return refit_by_kernel(dcem.Gaussian(), phi, u, (values, *elite), 0.0)

    assert refitted(values, mean) is not None
    assert refitted(values.double(), mean) is None
    assert refitted(values, mean.double()) is None
    assert refitted(values.to("meta"), mean) is None


def test_half_precision_and_transforms_are_left_to_torch():
    u = torch.zeros(2, 3, 4)
    assert fused.wanted(u) and not fused.wanted(u.bfloat16())
    inside = []
    torch.func.vmap(lambda x: inside.append(fused.wanted(x)) or x)(u)
    assert inside == [False]

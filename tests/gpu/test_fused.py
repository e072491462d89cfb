"""The fused kernels between evaluations of the objective against separate ones.

Every n, dtype, set of options and power of two that N rounds up to is a variant to compile, which takes most
of the time. So the cases are few, and share shapes.
"""

import pytest
import torch
from torch import Tensor

import dcem
from dcem.distributions import fused
from dcem.distributions.moments import rank_mu, weighted_moments
from dcem.solvers.elites import lowest_smooth
from dcem.solvers.refit import _Refit
from dcem.topk.lml import flags, soft_topk

pytestmark = pytest.mark.gpu
PAPER = {"tau": 1.0, "normalize": True, "distribution": dcem.Gaussian(estimator="likelihood")}
SOLVERS = {
    "paper": dcem.DCEM(n_samples=100, n_elite=10, n_iters=5, **PAPER),
    "default": dcem.DCEM(n_samples=100, n_elite=10, n_iters=5),
    "cold": dcem.DCEM(n_samples=100, n_elite=10, n_iters=5, tau=1e-3, smoothing=0.2, widen=1.1),
    "box": dcem.DCEM(n_samples=100, n_elite=10, n_iters=5, distribution=dcem.Gaussian(bounds=(-1.0, 0.5))),
    "many": dcem.DCEM(n_samples=5000, n_elite=500, n_iters=5, **PAPER),
}
SINGLE, DOUBLE = torch.float32, torch.float64
# N, n, the scaling of values, by rank-mu, τ and dtype. A tile has 32 columns for N = 100, and 8 for 1000.
#
# Not N = 2 in float32: two standardised values are ±1 whatever they were, so their gradient is 0. What is
# computed is the rounding of terms that cancel, over a spread that can be small: none of its digits counts.
REFITS = [
    (2, 5, True, False, 1.0, DOUBLE),
    (2, 20, "half", True, 0.1, DOUBLE),
    (3, 5, True, False, 1.0, SINGLE),
    (7, 1, "half", True, 1.0, SINGLE),
    (7, 5, True, True, 0.1, DOUBLE),
    (100, 20, True, False, 1.0, SINGLE),
    (100, 130, "half", True, 0.1, SINGLE),
    (1000, 1, True, True, 1.0, SINGLE),
    (1000, 20, "half", False, 0.1, SINGLE),
    (1000, 130, True, False, 1.0, DOUBLE),
    (4096, 5, "half", True, 0.1, SINGLE),
    (4096, 20, True, False, 1.0, SINGLE),
    (4096, 20, "half", True, 0.1, DOUBLE),
]


def refitted(by_kernel: bool, given: list[Tensor | None], how: tuple) -> list[Tensor]:
    """Weights, mean and σ, and the gradients for values, samples and the last mean and σ."""
    given = [None if x is None else x.clone().requires_grad_() for x in given]
    values, u, mean, sigma = given
    k, tau, warmer, scaling, slowest, floor, near = how
    if by_kernel:
        from dcem.solvers import refit_triton

        settings = k, tau, warmer, flags(scaling, True, True, True), slowest, floor, near
        found = _Refit.apply(*given, None, settings, refit_triton, None)
    else:
        w = soft_topk(values, k, tau, scaling, True, warmer or None, gate=True, lowest=True)
        by_moments = weighted_moments(u, w, floor, near)
        found = w, *(by_moments if mean is None else rank_mu(u, w, (mean, sigma), slowest, floor, near))
    g = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(y.shape, generator=g, dtype=torch.float64).to(y) for y in found]
    wanted = [x for x in given if x is not None]
    return [*(y.detach() for y in found), *torch.autograd.grad(found, wanted, cotangents)]


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize(("N", "n", "scaling", "last", "tau", "dtype"), REFITS, ids=str)
def test_a_refit_is_that_of_the_cpu_in_float64(N, n, scaling, last, tau, dtype, batch):
    g = torch.Generator().manual_seed(N + n)
    shapes = (*batch, N), (*batch, N, n), (*batch, n), (*batch, n)
    values, u, mean, sigma = (torch.randn(s, generator=g, dtype=torch.float64) for s in shapes)
    if N == 100 and batch == (3,):
        values[0, ::3], values[1, 1:90], values[2, :5] = torch.nan, torch.inf, -torch.inf
    given = [x.to(dtype) for x in (3 * values + 2, 1 + u, mean, sigma.exp())]
    given = given if last else [*given[:2], None, None]
    k = max(N / 10, 1.0)
    least = lowest_smooth(N, k)
    how = k, tau, least if tau < least else 0.0, scaling, 0.3, 1e-12, 1e-5
    found = refitted(True, [None if x is None else x.cuda() for x in given], how)
    exact = refitted(False, [None if x is None else x.double() for x in given], how)
    same = refitted(False, given, how)
    for got, plain, expected in zip(found, same, exact, strict=True):
        assert got.dtype == dtype
        rounding = (3e-5 if dtype == SINGLE else 1e-9) * max(expected.abs().max().item(), 1.0)
        atol = max(rounding, 5 * (plain.double() - expected).abs().max().item())
        torch.testing.assert_close(got.cpu().double(), expected, rtol=0, atol=atol)


def solved(solver: dcem.DCEM, x0: Tensor, centre: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    def f(x: Tensor) -> Tensor:
        return (x - centre.unsqueeze(-2)).square().sum(-1) + x.sin().sum(-1)

    sol = dcem.minimize(f, solver, x0, noise=noise)
    return sol.x, sol.cost


def inputs(solver: dcem.DCEM, dtype: torch.dtype) -> list[Tensor]:
    shapes = (3, 4), (3, 4), (5, 3, solver.n_samples, 4)
    x0, centre, noise = (torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes)
    return [(0.1 * x0).requires_grad_(), (0.3 * centre).requires_grad_(), noise]


def gradients(f, *given: Tensor) -> list[Tensor]:
    x, cost = f(*given)
    grads = torch.autograd.grad(x.cos().sum() + cost.sum(), given[:2])
    return [x.detach(), cost.detach(), *grads]


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, SINGLE) for name in SOLVERS), ("paper", DOUBLE), ("default", DOUBLE)],
    ids=str,
)
def test_a_solve_and_its_gradients(monkeypatch, name, dtype, captured):
    given = inputs(SOLVERS[name], dtype)
    run = lambda *given: solved(SOLVERS[name], *given)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(fused, "DEVICES", ())
        expected = gradients(run, *given)
    fast = dcem.capture(run) if captured else run
    loose = {"rtol": 1e-6, "atol": 1e-7} if dtype == DOUBLE else {"rtol": 1e-3, "atol": 1e-3}
    for _ in range(2):
        torch.testing.assert_close(gradients(fast, *given), expected, **loose)
    with torch.no_grad():
        torch.testing.assert_close(run(*given)[0], expected[0], **loose)


@pytest.mark.parametrize("name", ["paper", "default"])
def test_derivatives_of_any_order(name):
    solver = dcem.DCEM(n_samples=8, n_elite=3, n_iters=2, **(PAPER if name == "paper" else {"tau": 1.0}))
    noise = torch.randn(2, 8, 2, device="cuda", dtype=torch.float64)
    given = [torch.randn(2, device="cuda", dtype=torch.float64, requires_grad=True) for _ in range(2)]
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x0, centre: solved(solver, x0, centre, noise)[0], given)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", SOLVERS)
def test_nothing_waits_for_the_host(name):
    given = inputs(SOLVERS[name], torch.float32)
    run = lambda *given: solved(SOLVERS[name], *given)  # noqa: E731
    gradients(run, *given)  # kernels are compiled at their first use
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        gradients(run, *given)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def launches(solver: dcem.DCEM) -> int:
    given = inputs(solver, torch.float32)
    run = lambda *given: solved(solver, *given)  # noqa: E731
    gradients(run, *given)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        gradients(run, *given)
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())


@pytest.mark.parametrize("name", ["paper", "default", "box"])
def test_less_than_half_the_launches(monkeypatch, name):
    after = launches(SOLVERS[name])
    monkeypatch.setattr(fused, "DEVICES", ())
    before = launches(SOLVERS[name])
    assert after < before / 2, (after, before)

"""The fused refit equals the soft top-k and the moments in plain torch, forward and backward."""

import itertools
import random

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from dcem import _native
from dcem.distributions.moments import rank_mu, weighted_moments
from dcem.solvers import refit_triton
from dcem.solvers.elites import lowest_smooth
from dcem.solvers.refit import _Refit
from dcem.topk.lml import flags, soft_topk

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of numpy, which does not expect infinities
]
TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-9}
SLOWEST, NEAR = 0.3, 1e-5
BATCHES, SIZES = [(), (3,), (2, 2)], [1, 5, 20, 130]


def inputs(batch: tuple[int, ...], N: int, n: int, dtype: torch.dtype) -> list[Tensor]:
    """Values, samples, and the last mean and σ."""
    g = torch.Generator().manual_seed(N + n)
    shapes = (*batch, N), (*batch, N, n), (*batch, n), (*batch, n)
    values, u, mean, sigma = (torch.randn(s, generator=g, dtype=torch.float64) for s in shapes)
    return [x.to(dtype) for x in (3 * values + 2, 1 + u, mean, sigma.exp())]


def settings(k: float, tau: float, scaling: object, floor: float = 1e-12) -> tuple[object, ...]:
    least = lowest_smooth(1000, k)  # low temperatures have the slopes of a higher one
    return k, tau, least if tau < least else 0.0, flags(scaling, True, True, True), SLOWEST, floor, NEAR


def by_kernel(given, floors, how):
    return _Refit.apply(*given, floors, how, refit_triton, None)


def by_torch(given, floors, how):
    values, u, mean, sigma = given
    k, tau, warmer, flag, slowest, floor, near = how
    scaling = {flags(s, True, True, True): s for s in (False, True, "half")}[flag]
    w = soft_topk(values, k, tau, scaling, True, warmer or None, gate=True, lowest=True)
    least = floor if floors is None else floors
    if mean is None:
        return w, *weighted_moments(u, w, least, near)
    return w, *rank_mu(u, w, (mean, sigma), slowest, least, near)


def outputs_and_gradients(refit, given, floors, how) -> list[Tensor]:
    given = [None if x is None else x.clone().requires_grad_() for x in given]
    found = refit(given, floors, how)
    g = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(y.shape, generator=g, dtype=torch.float64).to(y) for y in found]
    wanted = [x for x in given if x is not None]
    return [*(y.detach() for y in found), *torch.autograd.grad(found, wanted, cotangents)]


def compare(monkeypatch, given, how, floors=None, rows=slice(None)) -> None:
    """The kernel is as close to plain torch in float64 as rounding, or plain torch in the same dtype, is."""
    dtype = given[0].dtype
    found = outputs_and_gradients(by_kernel, given, floors, how)
    with monkeypatch.context() as patch:
        patch.setattr(_native, "kernels", dict)
        plain = outputs_and_gradients(by_torch, given, floors, how)
        given = [None if x is None else x.double() for x in given]
        exact = outputs_and_gradients(by_torch, given, None if floors is None else floors.double(), how)
    for got, same, expected in zip(found, plain, exact, strict=True):
        assert got.dtype == dtype and got.shape == expected.shape
        got, same, expected = (x.double()[rows] for x in (got, same, expected))
        rounding = TOLERANCE[dtype] * max(expected.abs().max().item(), 1.0)
        atol = max(rounding, 3 * (same - expected).abs().max().item())
        torch.testing.assert_close(got, expected, rtol=0, atol=atol)


DTYPES = [torch.float32, torch.float64]
CASES = itertools.product([2, 7, 100, 1000], [1.0, 0.1, 0.01], [False, True, "half"], [True, False], DTYPES)


@pytest.mark.parametrize(("N", "tau", "scaling", "last", "dtype"), list(CASES))
def test_weights_moments_and_gradients(monkeypatch, N, tau, scaling, last, dtype):
    choose = random.Random(f"{N} {tau} {scaling} {last} {dtype}")
    given = inputs(choose.choice(BATCHES), N, choose.choice(SIZES), dtype)
    if not last:
        given[2:] = None, None
    k = choose.choice([max(N / 10, 1.0), 0.6 * N])
    compare(monkeypatch, given, settings(k, tau, scaling))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("last", [True, False], ids=["rank-mu", "likelihood"])
def test_any_batch_of_any_dimension(monkeypatch, batch, n, last):
    given = inputs(batch, 20, n, torch.float64)
    compare(monkeypatch, given if last else [*given[:2], None, None], settings(4, 0.3, True))


def peculiar(dtype: torch.dtype) -> Tensor:
    """Rows with entries that are not finite, tied, constant, far from 0, steep or without any value."""
    v = torch.randn(10, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    v[0, ::3] = torch.nan
    v[1, 1::2] = torch.inf
    v[2, 2:] = -torch.inf
    v[3, 1:] = torch.nan
    v[4] = torch.nan
    v[5] = v[5].round()
    v[6] = 2.0
    v[7] += 1e3
    v[8] *= 1e5
    v[9, :20] = v[9].min()  # most of the better half is one value
    return v.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scaling", [False, True, "half"], ids=str)
@pytest.mark.parametrize("tau", [1.0, 0.05])
@pytest.mark.parametrize("k", [3, 3.5, 30])
def test_peculiar_rows(monkeypatch, k, tau, scaling, dtype):
    given = inputs((10,), 30, 4, dtype)
    given[0] = peculiar(dtype)
    # Which of tied medians has the gradient of the median is up to the implementation.
    rows = [0, 1, 2, 3, 6, 7, 8] if scaling == "half" else [0, 1, 2, 3, 5, 6, 7, 8, 9]
    compare(monkeypatch, given, settings(k, tau, scaling), rows=rows)
    weights, mean, sigma, gradient, *_ = outputs_and_gradients(
        by_kernel, given, None, settings(k, tau, scaling)
    )
    assert (weights[4] == 0).all() and mean[4].isnan().all() and sigma[4].isnan().all()
    assert (gradient[4] == 0).all()


@pytest.mark.skipif(not _native.kernels(), reason="no C++ compiler here")
def test_tied_medians_share_a_gradient_as_they_do_on_the_cpu():
    given = inputs((10,), 30, 4, torch.float64)
    given[0] = peculiar(torch.float64)
    how = settings(3, 0.3, "half")
    gradient = outputs_and_gradients(by_kernel, given, None, how)[3]
    native = outputs_and_gradients(lambda given, *_: by_torch(given, None, how), given, None, how)[3]
    torch.testing.assert_close(gradient, native, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scaling", [False, True, "half"], ids=str)
def test_values_that_differ_by_rounding_pass_no_gradient(scaling, dtype):
    given = inputs((2,), 20, 3, dtype)
    steps = torch.finfo(dtype).eps * torch.arange(20, dtype=dtype)
    given[0][0], given[0][1] = 1 + steps, 1 + 1e3 * steps  # a spread of six roundings, and of many
    gradient = outputs_and_gradients(by_kernel, given, None, settings(4, 1.0, scaling))[3]
    assert (gradient[0] == 0).all() and (gradient[1] != 0).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("last", [True, False], ids=["rank-mu", "likelihood"])
def test_a_floor_for_each_dimension(monkeypatch, last, dtype):
    given = inputs((3,), 20, 4, dtype)
    if not last:
        given[2:] = None, None
    floors = torch.tensor([1e-12, 0.1, 9.0, 100.0], dtype=dtype)
    compare(monkeypatch, given, settings(4, 0.3, True), floors=floors)
    compare(monkeypatch, given, settings(4, 0.3, True, floor=9.0))


def test_a_floor_relative_to_the_mean():
    given = inputs((), 20, 2, torch.float64)
    given[1] = torch.full((20, 2), 3.0, dtype=torch.float64)
    given[2:] = None, None
    _, _, sigma, *gradients = outputs_and_gradients(
        by_kernel, given, None, settings(4, 1.0, True, floor=1e-30)
    )
    torch.testing.assert_close(sigma, torch.full_like(sigma, 3.0 * NEAR))
    assert all(g.isfinite().all() for g in gradients)


def test_the_mean_of_samples_far_from_zero_keeps_its_digits():
    """They differ by a few roundings: so do the moments, if they lose none."""
    values, u, *_ = inputs((), 100, 3, torch.float32)
    u = 1000 + 1e-2 * (u - 1)
    how = settings(10, 1.0, True)
    _, mean, sigma = (y.double() for y in by_kernel([values, u, None, None], None, how))
    _, exact_mean, exact_sigma = by_torch([values.double(), u.double(), None, None], None, how)
    torch.testing.assert_close(mean, exact_mean, rtol=1.2e-7, atol=0)
    torch.testing.assert_close(sigma, exact_sigma, rtol=1e-4, atol=0)

"""The C++ kernels do what plain torch does, and where they cannot be had, plain torch does it."""

import shutil
import tempfile

import pytest
import torch
from torch import Tensor

import dcem
from dcem import _native
from dcem.distributions.moments import effective_samples, rank_mu, rank_mu_rate, weighted_moments
from dcem.topk.better_half import by_better_half
from dcem.topk.lml import soft_topk

needs_compiler = pytest.mark.skipif(not _native.kernels(), reason="no C++ compiler here")
DTYPES = [torch.float32, torch.float64]


@pytest.fixture
def both(monkeypatch):
    """What a function returns with the kernels, and without."""

    def run(function):
        found = function()
        with monkeypatch.context() as patch:
            patch.setattr(_native, "kernels", dict)
            return found, function()

    return run


def with_gradients(function, *inputs: Tensor) -> list[Tensor]:
    """The outputs, and the pullback of a fixed cotangent to the inputs that require gradients."""
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(y.shape, generator=generator).to(y.dtype) for y in outputs]
    wanted = [x for x in inputs if x.requires_grad]
    return [*(y.detach() for y in outputs), *torch.autograd.grad(outputs, wanted, cotangents)]


def scores(dtype: torch.dtype) -> Tensor:
    """Rows of every kind: smooth, steep, shifted, tied, constant, short of finite entries."""
    x = torch.randn(8, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[1] *= 1e4
    x[2] += 1e3
    x[3] = x[3].round()
    x[4] = 2.0
    x[5, ::3] = torch.nan
    x[6, 4:] = -torch.inf
    x[7, :25] = torch.inf
    return x.to(dtype)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tau", [1.0, 0.1, 1e-3])
@pytest.mark.parametrize("scaling", [False, True, "half"])
@pytest.mark.parametrize("k", [5, 2.5, 50])
def test_the_soft_topk_is_that_of_plain_torch(both, k, scaling, tau, dtype):
    x = scores(dtype).requires_grad_()
    found, plain = both(lambda: with_gradients(lambda x: soft_topk(x, k, tau, scaling, True), x))
    if scaling == "half":  # which of tied medians has the gradient of the median is up to the implementation
        for gradient in (found[1], plain[1]):
            gradient[3] = pooled(gradient[3], x[3].detach())
    loose = {} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 2e-3 * min(1.0, 1 / tau / 10)}
    torch.testing.assert_close(found, plain, **loose)


def pooled(gradient: Tensor, x: Tensor) -> Tensor:
    """Entries that are equal have the mean of their gradients."""
    return torch.stack([gradient[x == value].mean() for value in x])


def elites_by_half(v: Tensor, k: float, tau: float) -> Tensor:
    return soft_topk(v, k, tau, "half", finite_only=True, lowest=True)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 30])
def test_values_scaled_by_their_better_half_are_those_of_the_formula(n, dtype):
    generator = torch.Generator().manual_seed(n)
    v = torch.randn(6, n, dtype=torch.float64, generator=generator)
    v[1] = v[1].exp() ** 4  # a few huge ones
    v[2] = 1e3 * v[2] + 5e3
    v[3, : n // 2 + 1] = v[3].min()  # the better half is one value
    v[4, 1:2], v[4, 3:4] = torch.nan, -torch.inf
    v[5, 2:3] = torch.inf
    v = v.to(dtype).requires_grad_()
    for k in {1, n}:
        found = with_gradients(lambda v, k=k: elites_by_half(v, k, 0.3), v)
        exact = v.detach().double().requires_grad_()
        plain = with_gradients(lambda v, k=k: soft_topk(-by_better_half(v), k, 0.3, False, True), exact)
        for gradient in (found[1], plain[1]):
            gradient[3] = pooled(gradient[3], v[3].detach())
        loose = {"rtol": 1e-7, "atol": 1e-7} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(found, plain, check_dtype=False, **loose)


@needs_compiler
def test_the_better_half_of_the_largest_is_the_upper_one_and_equal_values_weigh_the_same():
    v = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    high = soft_topk(-v, 2, 0.3, "half", finite_only=True)
    torch.testing.assert_close(high, elites_by_half(v, 2, 0.3))
    assert (elites_by_half(torch.full((2, 8), 3.0), 2, 0.3) == 0.25).all()


@needs_compiler
@pytest.mark.parametrize("n", [4, 7])
def test_derivatives_of_values_scaled_by_their_better_half(n):
    v = torch.randn(3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)).requires_grad_()
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda v: elites_by_half(v, 2, 0.5), v)


@needs_compiler
def test_values_that_differ_by_rounding_pass_no_gradient_however_they_are_scaled():
    v = torch.randn(2, 50, dtype=torch.float64)
    v[1] = 1e3 + 1e-12 * v[1]
    v.requires_grad_()
    y = soft_topk(v, 5, 0.3, "half", finite_only=True, gate=True, lowest=True)
    (gradient,) = torch.autograd.grad(y, v, torch.randn_like(y))
    assert (gradient[1] == 0).all() and (gradient[0] != 0).any()


@needs_compiler
@pytest.mark.parametrize("scaling", [True, "half"])
def test_gradients_of_k_and_of_the_temperature_are_those_of_plain_torch(both, scaling):
    x = scores(torch.float64)[[0, 1, 2, 4, 5, 6, 7, 0]].requires_grad_()
    k = torch.full((8, 1), 5.0, dtype=torch.float64, requires_grad=True)
    tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(
        *both(lambda: with_gradients(lambda *inputs: soft_topk(*inputs, scaling, True), x, k, tau))
    )


@needs_compiler
@pytest.mark.parametrize("finite_only", [False, True])
def test_slopes_at_a_higher_temperature_and_the_gate_are_those_of_plain_torch(both, finite_only):
    x = scores(torch.float64)[:7]
    x[2] = 1e3 + 1e-12 * torch.randn(50, dtype=torch.float64)  # rounding, which the gate keeps out
    x.requires_grad_()
    found, plain = both(
        lambda: with_gradients(
            lambda x: soft_topk(x, 5, 1e-3, True, finite_only, slopes_at=0.2, gate=True), x
        )
    )
    torch.testing.assert_close(found, plain)
    assert (found[1][2] == 0).all() and (found[1][0] != 0).any()


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("floor", [0.0, 0.7, torch.tensor([0.1, 0.9, 2.0])], ids=["none", "number", "tensor"])
def test_moments_are_those_of_plain_torch(both, floor, dtype):
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(4, 2, 60, 3, dtype=dtype, generator=generator).requires_grad_()
    w = torch.rand(4, 2, 60, dtype=dtype, generator=generator).requires_grad_()
    floor = floor.to(dtype) if isinstance(floor, Tensor) else floor
    found, plain = both(lambda: with_gradients(lambda u, w: weighted_moments(u, w, floor, 0.1), u, w))
    torch.testing.assert_close(found, plain)


def drawn(dtype: torch.dtype, *shape: int) -> list[Tensor]:
    """Samples, their weights, and the last mean and standard deviation."""
    generator = torch.Generator().manual_seed(0)
    *batch, count, n = shape
    u = torch.randn(*shape, dtype=dtype, generator=generator)
    w, sigma = (torch.rand(*batch, m, dtype=dtype, generator=generator) for m in (count, n))
    mean = torch.randn(*batch, n, dtype=dtype, generator=generator)
    return [x.requires_grad_() for x in (u, w, mean, sigma + 0.1)]


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [3, 40, 200])  # at a rate of 1, between, and the slowest
@pytest.mark.parametrize("floor", [0.0, 1.0, "tensor"])
def test_rank_mu_is_that_of_plain_torch(both, floor, n, dtype):
    floor = torch.linspace(0.1, 3, n, dtype=dtype) if floor == "tensor" else floor
    inputs = drawn(dtype, 4, 2, 30, n)
    found, plain = both(
        lambda: with_gradients(lambda u, w, *last: rank_mu(u, w, last, 0.2, floor, 0.1), *inputs)
    )
    torch.testing.assert_close(found, plain)


@needs_compiler
def test_derivatives_of_rank_mu():
    inputs = drawn(torch.float64, 2, 8, 12)
    assert rank_mu_rate(effective_samples(inputs[1]), 12).max() * 14 / 3 < 1  # the rate has a derivative
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda u, w, *last: rank_mu(u, w, last, 1e-3, 1e-9, 1e-9), inputs)
    assert check(lambda u, w: rank_mu(u, w, [x.detach() for x in inputs[2:]], 1e-3, 1e-9, 1e-9), inputs[:2])


@needs_compiler
def test_rows_that_lie_otherwise_in_memory_are_the_same_rows(both):
    x = torch.randn(50, 8, dtype=torch.float64).T.requires_grad_()
    u, w = torch.randn(50, 3, 8, dtype=torch.float64).movedim(2, 0), torch.rand(50, 8, dtype=torch.float64).T
    torch.testing.assert_close(*both(lambda: with_gradients(lambda x: soft_topk(x, 5, 0.5, True), x)))
    torch.testing.assert_close(*both(lambda: weighted_moments(u, w)))


@needs_compiler
@pytest.mark.parametrize("tau", [1.0, 0.01])
def test_a_solve_is_that_of_plain_torch(both, tau):
    theta = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_()
    noise = torch.randn(5, 3, 100, 5, dtype=torch.float64)

    def solve(theta: Tensor) -> Tensor:
        f = lambda x: (x - theta).square().sum(-1)  # noqa: E731
        return dcem.minimize(f, dcem.DCEM(n_iters=5, tau=tau), torch.zeros(3, 5).double(), noise=noise).x

    torch.testing.assert_close(*both(lambda: with_gradients(solve, theta)))


def test_without_a_compiler_or_when_not_wanted_there_are_no_kernels(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda name: None)
        assert _native.library.__wrapped__() is None
    monkeypatch.setenv("DCEM_NATIVE", "0")
    assert _native.library.__wrapped__() is None


@needs_compiler
def test_a_compiler_that_fails_and_a_folder_that_others_can_write_to_leave_plain_torch(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "false")
        assert _native.library.__wrapped__() is None
    (own,) = tmp_path.iterdir()
    own.chmod(0o777)
    assert _native.library.__wrapped__() is None
    own.chmod(0o700)
    assert _native.library.__wrapped__() is not None
    assert [path.suffix for path in own.iterdir()] == [".so"]  # and nothing else is left


@pytest.mark.parametrize("capability", ["AVX512", "AVX2", "NO AVX", "DEFAULT", "SVE256"])
def test_long_vectors_are_for_cpus_that_have_them(monkeypatch, capability):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(_native, "build", lambda _, instructions: instructions)
    assert ("-mavx2" in _native.library.__wrapped__()) == (capability in ("AVX512", "AVX2"))

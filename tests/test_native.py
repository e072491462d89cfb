"""The C++ kernels do what plain torch does, and where they cannot be had, plain torch does it."""

import shutil
import tempfile

import pytest
import torch
from torch import Tensor

import dcem
from dcem import _native
from dcem.distributions.moments import weighted_moments
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
    cotangents = [torch.randn(y.shape, dtype=y.dtype, generator=generator) for y in outputs]
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
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("k", [5, 2.5, 50])
def test_the_soft_topk_is_that_of_plain_torch(both, k, standardize, tau, dtype):
    x = scores(dtype).requires_grad_()
    found, plain = both(lambda: with_gradients(lambda x: soft_topk(x, k, tau, standardize, True), x))
    loose = {} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 2e-3 * min(1.0, 1 / tau / 10)}
    torch.testing.assert_close(found, plain, **loose)


@needs_compiler
def test_gradients_of_k_and_of_the_temperature_are_those_of_plain_torch(both):
    x = scores(torch.float64).requires_grad_()
    k = torch.full((8, 1), 5.0, dtype=torch.float64, requires_grad=True)
    tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(
        *both(lambda: with_gradients(lambda *inputs: soft_topk(*inputs, True, True), x, k, tau))
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

"""The kernel that draws samples equals plain torch, forward and backward."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from dcem.distributions import Gaussian, fused
from dcem.distributions.gaussian import GaussianState
from dcem.distributions.samples import drawn_by_kernel

pytestmark = pytest.mark.interpreter
BOUNDS = [None, (-1.0, 1.5), (torch.linspace(-1, 0, 5), 1.5), (-0.3, torch.ones(1))]


def inputs(*shape: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    *batch, _, n = shape
    g = torch.Generator().manual_seed(0)
    drawn = [torch.randn(s, generator=g, dtype=dtype) for s in ((*batch, n), (*batch, n), shape)]
    return [drawn[0].requires_grad_(), drawn[1].exp().requires_grad_(), drawn[2]]


def plain(mean: Tensor, sigma: Tensor, noise: Tensor, gaussian: Gaussian) -> Tensor:
    return gaussian.sample(GaussianState(mean, sigma), noise)


@pytest.mark.parametrize("shape", [(2, 1), (7, 5), (3, 100, 20), (2, 2, 30, 130), (1000, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_samples_and_gradients_of_any_shape(shape, dtype):
    given = inputs(*shape, dtype=dtype)
    u, x = drawn_by_kernel(*given, None)
    expected = plain(*given, Gaussian())
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
    for found in (u, x):
        torch.testing.assert_close(found, expected, **tolerance)
    g = torch.randn(shape, dtype=dtype)
    for outputs, grads in (((u,), (g,)), ((x,), (g,)), ((u, x), (g, 2 * g))):
        got = torch.autograd.grad(outputs, given[:2], grads, retain_graph=True)
        wanted = torch.autograd.grad(expected, given[:2], sum(grads), retain_graph=True)
        torch.testing.assert_close(got, wanted, **tolerance)


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_samples_outside_are_moved_to_a_face_and_pass_no_gradient(bounds):
    gaussian = Gaussian(bounds=bounds)
    given = inputs(2, 40, 5)
    u, x = drawn_by_kernel(*given, gaussian.box)
    expected = plain(*given, gaussian)
    torch.testing.assert_close([u, x], [expected, expected])
    if bounds is not None:
        assert (u.detach() == torch.as_tensor(bounds[1])).any()
    g = torch.randn_like(expected)
    got = torch.autograd.grad((u, x), given[:2], (g, g))
    torch.testing.assert_close(got, torch.autograd.grad(expected, given[:2], 2 * g))


@pytest.mark.parametrize("bounds", BOUNDS[:2], ids=str)
def test_derivatives_of_any_order(bounds):
    mean, sigma, noise = inputs(2, 6, 3)
    box = Gaussian(bounds=bounds).box
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda m, s: drawn_by_kernel(m, s, noise, box), (mean, sigma))


def test_without_gradients_one_tensor_is_enough():
    given, gaussian = inputs(4, 3), Gaussian(bounds=(-1.0, 1.5))
    with torch.no_grad():
        u, x = drawn_by_kernel(*given, gaussian.box)
        assert u is x
        torch.testing.assert_close(x, plain(*given, gaussian))
        assert drawn_by_kernel(*given, None) is None  # one kernel in torch, too


@pytest.mark.parametrize(
    "change",
    [
        lambda m, s, e: (m, s, e.requires_grad_()),
        lambda m, s, e: (m, s, e[:, :0]),
        lambda m, s, e: (m, s.expand(2, 3, 5), e),
        lambda m, s, e: (m.float(), s, e),
        lambda m, s, e: (m.half(), s.half(), e.half()),
        lambda m, s, e: (m, s.to("meta"), e),  # an error in torch; a kernel would read any address
    ],
)
def test_what_the_kernel_does_not_support_is_left_to_torch(change):
    mean, sigma, noise = inputs(3, 4, 5)
    assert drawn_by_kernel(mean, sigma, noise, None) is not None
    mean, sigma, noise = change(mean, sigma, noise)
    assert drawn_by_kernel(mean, sigma, noise, None) is None


def test_bounds_that_need_gradients_get_them_from_torch():
    high = torch.full((5,), 0.5, dtype=torch.float64, requires_grad=True)
    gaussian, given = Gaussian(bounds=(-1.0, high)), inputs(2, 40, 5)
    assert drawn_by_kernel(*given, gaussian.box) is None
    with torch.no_grad():
        assert drawn_by_kernel(*given, gaussian.box) is not None


def test_rows_too_long_for_one_program_are_left_to_torch(monkeypatch):
    given = inputs(2, 10, 3)
    assert drawn_by_kernel(*given, None) is not None
    monkeypatch.setattr(fused, "LONGEST", 29)
    assert drawn_by_kernel(*given, None) is None

"""The soft top-k's kernel in rows whose weights are 0 and 1 to rounding, or almost."""

import math

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from dcem import _native
from dcem.topk import lml_triton
from dcem.topk.lml import soft_topk

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of numpy, which does not expect infinities
]


@pytest.fixture(autouse=True)
def _plain_torch(monkeypatch):
    monkeypatch.setattr(_native, "kernels", dict)


def steep(n: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(8, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[0], x[0, n // 2] = 0.0, 0.8  # one far above the others
    x[1] += 100 * (x[1] > 0)  # two clusters
    x[2] = (4 * x[2]).round() / 4
    x[3] = (x[3] / x[4]).clamp(-1e3, 1e3)
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_entry_far_above_the_others(dtype):
    """Σ y is k to rounding for any ν between them. At the root the others have what it lacks."""
    x = torch.zeros(1, 40, dtype=dtype)
    x[0, 7] = 0.8
    y, *_ = lml_triton.forward(x, 1, 0.01, False, True)
    weight = math.exp(-0.8 / 0.01 / 2) / math.sqrt(39)  # 7e-19
    expected = torch.where(x > 0, 1.0, torch.tensor(weight, dtype=torch.float64))
    torch.testing.assert_close(y.double(), expected, rtol=1e-5 if dtype == torch.float32 else 1e-13, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("tau", [1.0, 0.1, 0.03, 0.01])
@pytest.mark.parametrize(
    ("n", "k"), [(40, 1), (40, 6), (40, 6.5), (40, 34), (40, 39), (3000, 300), (16384, 7)]
)
def test_weights_of_any_size_have_digits(n, k, tau, dtype):
    x = steep(n, dtype)
    y, *_ = lml_triton.forward(x, k, tau, False, True)
    expected = soft_topk(x.double(), k, tau, finite_only=True)
    double = dtype == torch.float64
    # In float32 the interpreter adds up the longest rows one by one.
    close = {"rtol": 1e-10, "atol": 1e-250} if double else {"rtol": 3e-4 if n > 4096 else 1e-4, "atol": 1e-35}
    torch.testing.assert_close(y.double(), expected, **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("tau", [1.0, 0.1, 0.01, 1e-3])
@pytest.mark.parametrize("k", [1, 6, 6.5, 34, 39])
def test_derivatives_where_all_weights_are_decided(k, tau, dtype):
    """That by k is a mean of the cotangent, over the entries next to the threshold."""
    x = steep(40, dtype)
    given = tuple(v.double() for v in (x, torch.full((8, 1), k), torch.full((8, 1), tau, dtype=dtype)))
    _, *rows = lml_triton.forward(*(v.to(dtype) for v in given), False, True)
    g = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype)
    gx, gk, _ = lml_triton.backward(g, x, *rows, False, False)
    leaves = [v.requires_grad_() for v in given[:2]]
    exact = soft_topk(*given, finite_only=True)
    expected_gx, expected_gk = torch.autograd.grad(exact, leaves, g.double())
    rtol, least = (1e-3, 1e-32) if dtype == torch.float32 else (1e-9, 1e-280)
    steepest = ((exact * (1 - exact)).amax(-1, keepdim=True) / tau).clamp_min(least)
    torch.testing.assert_close(gx.double() / steepest, expected_gx / steepest, rtol=0, atol=rtol)
    torch.testing.assert_close(gk.double(), expected_gk, rtol=0, atol=rtol)


@pytest.mark.parametrize("tau", [1e-38, 1e-3, math.inf])
def test_all_or_none_of_the_finite_entries_are_chosen(tau):
    x = torch.tensor([[3.0, -1e3, 2.0, -5.0], [math.inf, math.inf, 7.0, -7.0]])
    y, *rows = lml_triton.forward(x, torch.tensor([[4.0], [2.0]]), tau, False, False)
    assert torch.equal(y, torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]]))
    for gradient in lml_triton.backward(torch.ones_like(x), x, *rows, False, True):
        assert (gradient == 0).all()

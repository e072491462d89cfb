"""The other kernels for CUDA equal plain torch: soft and hard top-k, weighted moments."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from dcem import _native
from dcem.distributions import moments_triton
from dcem.distributions.moments import _plain
from dcem.topk import hard_triton, lml_triton
from dcem.topk.hard import hard_topk
from dcem.topk.lml import soft_topk

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of numpy, which does not expect infinities
]
DTYPES = [torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def _plain_torch(monkeypatch):
    monkeypatch.setattr(_native, "kernels", dict)


def scores(dtype: torch.dtype) -> Tensor:
    """Rows of every kind: smooth, steep, shifted, tied, constant, with entries that are not finite."""
    x = torch.randn(9, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[1] *= 1e4
    x[2] += 1e3
    x[3] = x[3].round()
    x[4] = 2.0
    x[5, ::3] = torch.nan
    x[6, 4:] = -torch.inf
    x[7, :5] = torch.inf
    x[8] = torch.nan
    return x.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("finite_only", [True, False])
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("tau", [1.0, 0.1])
@pytest.mark.parametrize("k", [6, 2.5, 40])
def test_soft_topk(k, tau, standardize, finite_only, dtype):
    x = scores(dtype)
    y, *rows = lml_triton.forward(x, k, tau, standardize, finite_only)
    exact = x.double().requires_grad_()
    expected = soft_topk(exact, k, tau, standardize, finite_only)
    loose = 1e-9 if dtype == torch.float64 else 2e-4 / tau  # in the shifted row, x has few digits
    torch.testing.assert_close(y.double(), expected.detach(), rtol=0, atol=loose)
    g = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gx, *_ = lml_triton.backward(g.to(dtype), x, *rows, standardize, False)
    torch.testing.assert_close(
        gx.double(), torch.autograd.grad(expected, exact, g)[0], rtol=0, atol=10 * loose / tau
    )


def test_soft_topk_with_a_k_and_a_temperature_for_every_row():
    x = scores(torch.float64)[:3].requires_grad_()
    k = torch.tensor([[2.0], [7.5], [20.0]], dtype=x.dtype, requires_grad=True)
    tau = torch.tensor([[0.3], [1.0], [2.0]], dtype=x.dtype, requires_grad=True)
    given = x, k, tau
    y, *rows = lml_triton.forward(*(v.detach() for v in given), False, True)
    expected = soft_topk(*given, finite_only=True)
    torch.testing.assert_close(y, expected.detach())
    g = torch.randn_like(y)
    gx, gk, gaa = lml_triton.backward(g, x.detach(), *rows, False, True)
    found = gx, gk, -gaa / tau.detach()
    torch.testing.assert_close(found, torch.autograd.grad(expected, given, g), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("finite_only", [True, False])
@pytest.mark.parametrize("k", [1, 6, 2.5, 40])
def test_hard_topk(k, finite_only):
    x = scores(torch.float32)
    found, expected = hard_triton.hard_topk(x, k, finite_only), hard_topk(x.double(), k, finite_only)
    tied = [3, 4] if finite_only else [3, 4, 7]  # any of equal entries may be taken
    others = [row for row in range(9) if row not in tied]
    assert torch.equal(found[others].double(), expected[others])
    torch.testing.assert_close(found.sum(-1).double(), expected.sum(-1))


def test_hard_topk_with_a_k_for_every_row():
    x = torch.randn(3, 17)
    k = torch.tensor([[1.0], [4.5], [17.0]])
    torch.testing.assert_close(hard_triton.hard_topk(x, k, True), hard_topk(x.double(), k).float())


@pytest.mark.parametrize(
    ("batch", "N", "n"), [((), 1, 1), ((3,), 100, 20), ((2, 2), 7, 130), ((2,), 2000, 3)]
)
def test_moments(batch, N, n):
    u, w = 3 * torch.randn(*batch, N, n) + 5, torch.rand(*batch, N)
    found = moments_triton.moments(u, w, 1e-30, 0.0)
    expected = _plain(u.double(), w.double(), 1e-30, 0.0)
    torch.testing.assert_close([x.double() for x in found], list(expected), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(moments_triton.moments(u, w, 400.0, 0.0)[1], torch.full((*batch, n), 20.0))

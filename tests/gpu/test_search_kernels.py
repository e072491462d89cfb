"""The kernels of a solve without gradients, hard top-k and weighted moments, against the plain paths."""

import math

import pytest
import torch

import dcem
from dcem.distributions.moments import _plain, weighted_moments
from dcem.topk.hard import hard_topk

pytestmark = pytest.mark.gpu

SHAPES = [(1,), (3, 7), (2, 3, 100), (16, 1000), (5, 4097), (2, 16384)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.33, 1.0])
def test_hard_topk_chooses_the_largest(shape: tuple[int, ...], share: float) -> None:
    x = torch.randn(shape, device="cuda")
    k = max(share * shape[-1], 1)
    torch.testing.assert_close(hard_topk(x, k), hard_topk(x.double(), k).float(), rtol=0, atol=2e-3)
    per_row = 1 + torch.rand(*shape[:-1], 1, device="cuda") * (shape[-1] - 1)
    torch.testing.assert_close(
        hard_topk(x, per_row), hard_topk(x.double(), per_row.double()).float(), rtol=0, atol=2e-3
    )


@pytest.mark.parametrize("k", [1, 10, 17.5, 100])
def test_hard_topk_of_equal_entries(k: float) -> None:
    """Any of them may be taken, but as many as there is room for."""
    x = torch.randn(50, 100, device="cuda").round()
    weights = hard_topk(x, k)
    assert ((weights == 0) | (weights == 1)).sum(-1).ge(99).all()
    torch.testing.assert_close(weights.sum(-1), torch.full((50,), float(k), device="cuda"))
    best = (hard_topk(x.double(), k) * x).sum(-1)
    torch.testing.assert_close((weights * x).sum(-1), best.float())


def test_hard_topk_leaves_out_what_is_not_finite() -> None:
    x = torch.randn(6, 50, device="cuda")
    x[0, :10] = math.nan
    x[1, ::2] = math.inf
    x[2, 1:] = -math.inf
    x[3] = math.nan
    x[4, :45] = -math.nan
    expected = hard_topk(x.double(), 10, finite_only=True).float()
    assert torch.equal(hard_topk(x, 10, finite_only=True), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("batch", "N", "n"), [((), 1, 1), ((3,), 100, 20), ((2, 5), 1000, 72), ((4,), 5000, 3)]
)
def test_moments(dtype: torch.dtype, batch: tuple[int, ...], N: int, n: int) -> None:
    u = 3 * torch.randn(*batch, N, n, device="cuda", dtype=dtype) + 5
    w = torch.rand(*batch, N, device="cuda", dtype=dtype)
    expected = _plain(u.double(), w.double(), 1e-30, 0.0)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for got, exact in zip(weighted_moments(u, w), expected, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=tolerance)


def test_moments_have_a_floor_and_pass_nan_on() -> None:
    u, w = torch.ones(2, 5, 3, device="cuda"), torch.ones(2, 5, device="cuda")
    assert torch.equal(weighted_moments(u, w, 0.25)[1], torch.full((2, 3), 0.5, device="cuda"))
    near = weighted_moments(u, w, 0.16, near=0.3)[1]  # 0.16 + (0.3 · 1)² = 0.5²
    torch.testing.assert_close(near, torch.full((2, 3), 0.5, device="cuda"))
    w[1] = 0
    mean, sigma = weighted_moments(u, w)
    assert mean[1].isnan().all() and sigma[1].isnan().all()
    assert mean[0].isfinite().all() and sigma[0].isfinite().all()


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_a_solve_is_the_same_with_and_without_a_graph(tau: float) -> None:
    solver = dcem.DCEM(n_samples=200, n_elite=20, n_iters=5, tau=tau)
    centre = torch.randn(3, 4, device="cuda", requires_grad=True)
    noise = torch.randn(5, 3, 200, 4, device="cuda")
    f = lambda x: (x - centre.unsqueeze(-2)).square().sum(-1)  # noqa: E731
    with_graph = dcem.minimize(f, solver, torch.zeros(3, 4, device="cuda"), noise=noise).x
    with torch.no_grad():
        without = dcem.minimize(f, solver, torch.zeros(3, 4, device="cuda"), noise=noise).x
    torch.testing.assert_close(without, with_graph.detach(), rtol=1e-4, atol=1e-5)

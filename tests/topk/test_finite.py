"""The soft top-k over values some of which are NaN or infinite."""

import math
from functools import partial

import pytest
import torch

from dcem._checks import all_finite, can_look
from dcem.topk.hard import hard_topk
from dcem.topk.lml import soft_topk
from dcem.topk.standardize import resolved

finite_topk = partial(soft_topk, finite_only=True)

pytestmark = pytest.mark.usefixtures("double")
BAD = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("k", [3, 2.5, torch.tensor([[3.0], [1.0]])], ids=str)
@pytest.mark.parametrize("tau", [0, 0.5, torch.tensor(0.5), torch.tensor([[0.5], [2.0]])], ids=str)
def test_equals_the_plain_one_when_all_are_finite(standardize, k, tau):
    x = torch.randn(2, 8)
    assert torch.equal(finite_topk(x, k, tau, standardize), soft_topk(x, k, tau, standardize))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("tau", [0, 1e-3, 0.7, torch.tensor(0.7), torch.tensor([[0.7], [2.0]])], ids=str)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e12])
def test_bad_entries_get_nothing_and_the_others_share_as_if_alone(bad, standardize, tau, scale):
    good = torch.randn(2, 6) * scale
    x = torch.cat([good[:, :2], torch.full((2, 2), bad), good[:, 2:]], dim=1)
    y = finite_topk(x, 3, tau, standardize)
    assert torch.equal(y[:, 2:4], torch.zeros(2, 2))
    alone = soft_topk(good, 3, tau, standardize)
    assert torch.allclose(y[:, [0, 1, 4, 5, 6, 7]], alone, atol=1e-9)


@pytest.mark.parametrize("tau", [0, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e10])
@pytest.mark.parametrize("standardize", [False, True])
def test_fewer_finite_entries_than_k(tau, dtype, scale, standardize):
    x = torch.tensor([[1.0, math.nan, 2.0, math.inf], [1.0, 2.0, 3.0, 4.0]], dtype=dtype) * scale
    y = finite_topk(x, 3, tau, standardize)
    assert torch.allclose(y[0], torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=dtype))
    assert math.isclose(y[1].sum().item(), 3, rel_tol=1e-5)


def test_exactly_k_finite_entries():
    x = torch.tensor([[-1.0, math.nan, 2.0, -math.inf, 0.5]])
    for tau in (0, 1e-3, 1.0, 100.0):
        assert torch.allclose(finite_topk(x, 3, tau, False), torch.tensor([[1.0, 0.0, 1.0, 0.0, 1.0]]))


def test_a_row_without_finite_entries_is_zero():
    x = torch.tensor([[math.nan, math.inf, -math.inf], [1.0, 2.0, 3.0]])
    for tau in (0, 1.0):
        y = finite_topk(x, 2, tau, True)
        assert torch.equal(y[0], torch.zeros(3))
        assert math.isclose(y[1].sum().item(), 2)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("tau", [0, 0.01, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_other_rows_are_not_touched(standardize, tau, dtype):
    """To rounding what they are when no row is bad; at tau = 0 bit for bit, ties included."""
    x = torch.randn(5, 30, dtype=dtype).round(decimals=1)
    clean = finite_topk(x, 5, tau, standardize)
    x[2, 3] = math.nan
    spoilt = finite_topk(x, 5, tau, standardize)
    rounding = 0 if tau == 0 else 20 * torch.finfo(dtype).eps / min(tau, 1)
    assert (spoilt - clean)[[0, 1, 3, 4]].abs().max() <= rounding


def test_all_values_equal_among_the_finite_ones():
    x = torch.tensor([[5.0, math.nan, 5.0, 5.0, 5.0]], requires_grad=True)
    y = finite_topk(x, 2, 1.0, True)
    assert torch.allclose(y, torch.tensor([[0.5, 0.0, 0.5, 0.5, 0.5]]))
    (gradient,) = torch.autograd.grad(y[0, 0], x)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
@pytest.mark.parametrize("standardize", [False, True])
def test_derivatives(check, standardize):
    bad = torch.tensor([[False, True, False, False, False], [False, False, False, False, True]])
    x, tau = torch.randn(2, 5, requires_grad=True), torch.tensor(0.8, requires_grad=True)

    def f(x, tau):
        return finite_topk(torch.where(bad, math.nan, x), 2, tau, standardize)

    assert check(f, (x, tau))


def test_hard_with_bad_entries_is_the_top_k_of_the_rest():
    x = torch.tensor([[1e30, math.nan, 1.0, 3.0, -1e30]])
    assert torch.equal(finite_topk(x, 2, 0, False), hard_topk(x.nan_to_num(-torch.inf), 2))


def test_looking_is_free_on_the_cpu():
    x = torch.ones(2)
    assert can_look(x) and all_finite(x)
    assert not all_finite(torch.tensor([1.0, math.nan])) and not all_finite(torch.tensor([1.0, -math.inf]))


@pytest.mark.parametrize(
    "row, expected",
    [
        ([1.0, 2.0, math.inf], True),
        ([1.0, 1.0, math.nan], False),
        ([1.0, -math.inf, 1.0], False),
        ([math.nan, 1.0, -math.inf], False),
        (BAD, False),
    ],
    ids=str,
)
def test_rows_are_resolved_by_their_finite_values(row, expected):
    assert resolved(torch.tensor([row])).tolist() == [[expected]]

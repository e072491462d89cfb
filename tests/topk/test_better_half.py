"""Values scaled by the spread of their better half."""

import math

import numpy as np
import pytest
import torch

from dcem.topk.better_half import by_better_half

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("n", [5, 20])
def test_is_the_distance_from_the_median_in_units_of_the_better_half(batch, n):
    v = torch.randn(*batch, n)
    for row, u in zip(v.reshape(-1, n).numpy(), by_better_half(v).reshape(-1, n).numpy(), strict=True):
        median = np.sort(row)[(n - 1) // 2]
        scale = np.sqrt(np.mean((row[row <= median] - median) ** 2))
        np.testing.assert_allclose(u, (row - median) / scale)


def test_is_the_standard_deviation_of_normal_values():
    v = 3 + 2 * torch.randn(100_000)
    assert torch.allclose(by_better_half(v), (v - 3) / 2, atol=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("scale", "shift"), [(1e-30, 0.0), (1e30, 0.0), (1.0, 1e3)])
def test_scale_and_shift_change_nothing(dtype, scale, shift):
    v = torch.randn(4, 30).to(dtype)
    assert torch.allclose(by_better_half(scale * v + shift), by_better_half(v), atol=1e-2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_left_out(bad):
    v = torch.randn(20)
    spoilt = torch.cat([v, torch.full((3,), bad)]).requires_grad_()
    u = by_better_half(spoilt)
    assert torch.allclose(u[:20], by_better_half(v)) and u[20:].isnan().all()
    (gradient,) = torch.autograd.grad(u[:20].square().sum(), spoilt)
    assert gradient.isfinite().all()


def test_a_better_half_of_one_value_is_scaled_by_all():
    u = by_better_half(torch.tensor([[1.0, 1.0, 1.0, 2.0, 4.0], [5.0, 5.0, 5.0, 5.0, 5.0]]))
    assert torch.allclose(u[0], torch.tensor([0.0, 0.0, 0.0, 1.0, 3.0]) / math.sqrt(2))
    assert (u[1] == 0).all()
    assert by_better_half(torch.tensor([1.0, 3.0])).diff() > 1


def test_double_precision_does_not_depend_on_the_default_dtype():
    v = torch.randn(4, 23)
    expected = by_better_half(v)
    torch.set_default_dtype(torch.float32)
    assert torch.allclose(by_better_half(v), expected, rtol=1e-12, atol=0)


def test_derivatives():
    v = torch.randn(2, 9, requires_grad=True)
    assert torch.autograd.gradcheck(by_better_half, v) and torch.autograd.gradgradcheck(by_better_half, v)
    (gradient,) = torch.autograd.grad((by_better_half(v) * torch.randn(2, 9)).sum(), v)
    assert gradient.sum(-1).abs().max() < 1e-12

"""Box bounds: clamp, truncate and squash."""

import math

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from scipy.stats import truncnorm

import dcem
from dcem import FullGaussian, Gaussian
from dcem.distributions.box import Box

pytestmark = pytest.mark.usefixtures("double")
LOW = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
HIGH = torch.tensor([1.0, 0.5, 30.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 2.0), (LOW, HIGH), (LOW, 40.0), (-2.0, HIGH), (LOW.float(), HIGH.float())]
)
def test_clamp_moves_points_to_the_nearest_face(low, high):
    x = 10 * torch.randn(5, 4, 3)
    expected = np.clip(x.numpy(), np.asarray(low), np.asarray(high))
    assert np.array_equal(Box(low, high).clamp(x).numpy(), expected)


def test_contains_is_a_matter_of_rows_and_includes_the_faces():
    x = torch.tensor([[0.0, 0.2, 3.0], [-1.0, 0.5, 30.0], [0.0, 0.6, 3.0], [math.nan, 0.2, 3.0]])
    assert Box(LOW, HIGH).contains(x).tolist() == [True, True, False, False]


@pytest.mark.parametrize(("low", "high"), [(-1.0, 2.0), (LOW, HIGH)])
def test_squash_maps_into_the_box_and_back(low, high):
    box = Box(low, high, "squash")
    u = 3 * torch.randn(50, 3) + 1
    x = box.squash(u)
    assert box.contains(x).all()
    inside = ((x - torch.as_tensor(low)) > 1e-3) & ((torch.as_tensor(high) - x) > 1e-3)
    assert torch.allclose(box.unsquash(x)[inside], u[inside], atol=1e-6)


def test_squash_has_slope_one_at_the_centre_and_is_increasing():
    box = Box(LOW, HIGH, "squash")
    centre = (LOW + HIGH) / 2
    slope = torch.func.jacrev(box.squash)(centre)
    assert torch.allclose(slope, torch.eye(3))
    assert torch.allclose(box.squash(centre), centre)


def test_unsquash_of_a_face_is_finite():
    for dtype in (torch.float32, torch.float64):
        box = Box(-1.0, 1.0, "squash")
        u = box.unsquash(torch.tensor([-1.0, 1.0], dtype=dtype))
        assert u.isfinite().all()
        assert torch.allclose(box.squash(u), torch.tensor([-1.0, 1.0], dtype=dtype), atol=1e-5)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 0.5), (0.1, math.inf), (-math.inf, 0.0), (-0.01, 0.01)])
@pytest.mark.parametrize(("mean", "sigma"), [(0.0, 1.0), (0.3, 0.2), (-0.4, 5.0)])
def test_truncated_normal_is_the_inverse_of_its_cdf(low, high, mean, sigma):
    noise = torch.randn(200, 1)
    x = Box(low, high, "truncate").truncated_normal(torch.tensor([mean]), torch.tensor([sigma]), noise)
    standard = (low - mean) / sigma, (high - mean) / sigma
    expected = truncnorm.ppf(ndtr(noise.numpy()), *standard, loc=mean, scale=sigma)
    np.testing.assert_allclose(x.numpy(), expected, atol=1e-7 * max(1, sigma))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("sigma", [1e-6, 1.0, 100.0])
def test_truncated_samples_are_inside_and_pass_finite_gradients(dtype, sigma):
    """Also from means on the faces."""
    mean = torch.tensor([-1.0, -0.999, 0.0, 1.0], dtype=dtype, requires_grad=True)
    scale = torch.full((4,), sigma, dtype=dtype, requires_grad=True)
    x = Box(-1.0, 1.0, "truncate").truncated_normal(mean, scale, torch.randn(500, 4, dtype=dtype))
    assert ((x >= -1) & (x <= 1)).all()
    gradients = torch.autograd.grad(x.sum(), (mean, scale))
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("family", [Gaussian, FullGaussian])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bounds": (1.0, -1.0)}, r"bounds must satisfy low < high everywhere, got low=1.0, high=-1.0"),
        ({"bounds": (0.0, 0.0)}, r"bounds must satisfy low < high"),
        ({"bounds": (torch.zeros(2), torch.tensor([1.0, -1.0]))}, r"bounds must satisfy low < high"),
        ({"bounds": (math.nan, 1.0)}, r"bounds must satisfy low < high everywhere, got low=nan"),
        ({"bounds": 1.0}, r"bounds must be a pair \(low, high\), got 1.0"),
        ({"bounds": (1.0, 2.0, 3.0)}, r"bounds must be a pair"),
        ({"bounds": (0.0, math.inf), "boundary": "squash"}, r"bounds must be finite for 'squash'"),
        ({"bounds": (0.0, 1.0), "boundary": "bounce"}, r"boundary must be 'clamp', .* got 'bounce'"),
    ],
)
def test_bad_bounds_say_what_is_wrong(family, settings, words):
    with pytest.raises(ValueError, match=f"^{family.__name__}: {words}"):
        family(**settings)


@pytest.mark.parametrize("family", [Gaussian, FullGaussian])
@pytest.mark.parametrize("shape", [(3,), (2, 1), (2, 2)])
def test_bounds_of_another_size_say_what_is_wrong(family, shape):
    distribution = family(bounds=(torch.zeros(shape), 1.0))
    with pytest.raises(ValueError, match=rf"bounds must be numbers or tensors of shape \(2,\).*{shape[0]}"):
        distribution.init(torch.full((5, 2), 0.5))


@pytest.mark.parametrize("sigma", [1.0, 1e3, 1e7, 1e20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_truncated_normal_far_wider_than_its_box_is_uniform_there(sigma, dtype):
    noise = torch.randn(4000, 1, dtype=dtype)
    box = Box(-1.0, 2.0, "truncate")
    x = box.truncated_normal(torch.zeros(1, dtype=dtype), torch.full((1,), sigma, dtype=dtype), noise)
    assert box.contains(x).all()
    if sigma >= 1e3:
        assert abs(x.mean() - 0.5) < 0.05 and abs(x.std() - 3 / 12**0.5) < 0.03


@pytest.mark.parametrize("boundary", ["clamp", "truncate"])
def test_bounds_may_be_infinite(boundary):
    low, high = torch.tensor([-math.inf, -1.0]), torch.tensor([math.inf, math.inf])
    distribution = dcem.Gaussian(bounds=(low, high), boundary=boundary)
    sol = dcem.minimize(
        lambda x: (x + 3).square().sum(-1), dcem.DCEM(n_iters=30, distribution=distribution), torch.zeros(2)
    )
    assert torch.allclose(sol.x, torch.tensor([-3.0, -1.0]), atol=0.1)
    assert (sol.x >= low).all()


def test_bounds_may_be_arrays_and_lists():
    numpy = pytest.importorskip("numpy")
    expected = dcem.Gaussian(bounds=(torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0])))
    arrays = numpy.array([-1, -2], dtype=numpy.float32), numpy.array([1, 2], dtype=numpy.float32)
    for bounds in (arrays, ([-1, -2], [1, 2])):
        assert dcem.Gaussian(bounds=bounds).box == expected.box


def test_the_first_spread_is_half_of_the_box_unless_told():
    x0 = torch.zeros(4, 2)
    bounds = (torch.tensor([-1.0, -math.inf]), torch.tensor([3.0, math.inf]))
    assert torch.equal(dcem.Gaussian(bounds=bounds).init(x0).sigma, torch.tensor([2.0, 1.0]).expand(4, 2))
    assert torch.equal(dcem.FullGaussian(bounds=(-1.0, 3.0)).init(x0).sigma, torch.full((4, 2), 2.0))
    assert torch.equal(dcem.Gaussian().init(x0).sigma, torch.ones(4, 2))
    assert torch.equal(dcem.Gaussian(sigma=0.1, bounds=bounds).init(x0).sigma, torch.full((4, 2), 0.1))

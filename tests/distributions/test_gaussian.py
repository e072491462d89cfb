"""The diagonal Gaussian."""

import math

import numpy as np
import pytest
import torch

from dcem import FullGaussian, Gaussian
from dcem.distributions.gaussian import GaussianState, least_variance

pytestmark = pytest.mark.usefixtures("double")
BATCHES = [(), (2,), (2, 3)]


@pytest.mark.parametrize("batch", BATCHES)
def test_fit_is_the_weighted_mean_and_standard_deviation(batch):
    u = torch.randn(*batch, 20, 3)
    p = torch.rand(*batch, 20).softmax(-1)
    phi = Gaussian(estimator="likelihood").fit(None, u, p, sigma_min=0.0)
    weights = np.broadcast_to(p.numpy()[..., None], u.shape)
    mean = np.average(u.numpy(), axis=-2, weights=weights)
    variance = np.average((u.numpy() - mean[..., None, :]) ** 2, axis=-2, weights=weights)
    np.testing.assert_allclose(phi.mean.numpy(), mean, atol=1e-12)
    np.testing.assert_allclose(phi.sigma.numpy(), np.sqrt(variance), atol=1e-12)


@pytest.mark.parametrize("n_iters", [10, 1000])
@pytest.mark.parametrize("batch", BATCHES)
def test_rank_mu_moves_the_variance_towards_that_around_the_last_mean(batch, n_iters):
    u, w = torch.randn(*batch, 20, 3) + 2, torch.rand(*batch, 20)
    last = GaussianState(torch.randn(*batch, 3), torch.rand(*batch, 3) + 0.5)
    phi = Gaussian(n_iters=n_iters).fit(last, u, w, 0.0)
    p = w / w.sum(-1, keepdim=True)
    mu = 1 / p.square().sum(-1, keepdim=True)
    c = 2 * (mu - 1.75 + 1 / mu) / (25 + mu) * 5 / 3
    c = c.clamp(min(1.0, 15 / n_iters), 1.0)
    target = (p.unsqueeze(-1) * (u - last.mean.unsqueeze(-2)).square()).sum(-2)
    assert torch.allclose(phi.mean, (p.unsqueeze(-1) * u).sum(-2))
    assert torch.allclose(phi.sigma.square(), (1 - c) * last.sigma.square() + c * target)


def test_fit_maximises_the_weighted_likelihood():
    u, p = torch.randn(30, 2), torch.rand(30).softmax(-1)
    phi = [v.requires_grad_() for v in Gaussian(estimator="likelihood").fit(None, u, p, 0.0)]
    likelihood = (p @ torch.distributions.Normal(*phi).log_prob(u)).sum()
    assert all(g.abs().max() < 1e-12 for g in torch.autograd.grad(likelihood, phi))


@pytest.mark.parametrize("batch", BATCHES)
def test_sample_is_reparameterised(batch):
    phi = GaussianState(torch.randn(*batch, 3), torch.rand(*batch, 3))
    noise = torch.randn(*batch, 5, 3)
    expected = phi.mean.unsqueeze(-2) + phi.sigma.unsqueeze(-2) * noise
    assert torch.allclose(Gaussian().sample(phi, noise), expected)
    clamped = Gaussian(bounds=(-0.5, 0.5)).sample(phi, noise)
    assert torch.allclose(clamped, expected.clamp(-0.5, 0.5))


@pytest.mark.parametrize("boundary", ["clamp", "truncate", "squash"])
@pytest.mark.parametrize("batch", BATCHES)
def test_decoded_samples_are_inside_and_x0_decodes_to_itself(boundary, batch):
    g = Gaussian(sigma=2.0, bounds=(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 0.2])), boundary=boundary)
    x0 = torch.tensor([0.5, 0.1]).expand(*batch, 2)
    phi = g.init(x0)
    assert torch.allclose(g.decode(phi.mean), x0)
    x = g.decode(g.sample(phi, torch.randn(*batch, 100, 2)))
    assert x.shape == (*batch, 100, 2) and g.box.contains(x).all()


@pytest.mark.parametrize(
    ("sigma", "shape"), [(0.5, ()), (torch.tensor(0.5), ()), (torch.full((3,), 0.5), (3,))], ids=str
)
def test_sigma_is_a_number_or_a_tensor_that_broadcasts(sigma, shape):
    assert torch.equal(Gaussian(sigma=sigma).init(torch.zeros(2, 3)).sigma, torch.full((2, 3), 0.5))


def test_sigma_follows_the_dtype_of_x0_and_keeps_its_graph():
    sigma = torch.ones(3, dtype=torch.float64, requires_grad=True)
    phi = Gaussian(sigma=sigma).init(torch.zeros(2, 3, dtype=torch.float32))
    assert phi.sigma.dtype == torch.float32
    assert torch.autograd.grad(phi.sigma.sum(), sigma)[0].tolist() == [2.0] * 3


def test_sigma_min_is_a_floor():
    u, p = torch.randn(20, 3) * torch.tensor([1e-3, 1.0, 0.0]), torch.full((20,), 0.05)
    for estimator in ("rank-mu", "likelihood"):
        g = Gaussian(estimator=estimator)
        phi = GaussianState(torch.zeros(3), torch.full((3,), 1e-3))
        free, floored = (g.fit(phi, u, p, sigma_min).sigma for sigma_min in (0.0, 0.1))
        assert torch.allclose(floored, free.clamp_min(0.1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_samples_that_all_agree_have_a_finite_gradient(dtype, value):
    """√variance has an infinite slope at 0."""
    u = torch.full((10, 2), value, dtype=dtype, requires_grad=True)
    p = torch.full((10,), 0.1, dtype=dtype, requires_grad=True)
    phi = Gaussian(estimator="likelihood").fit(None, u, p, 0.0)
    gradients = torch.autograd.grad(phi.mean.sum() + phi.sigma.sum(), (u, p))
    assert all(g.isfinite().all() for g in gradients)
    assert (phi.sigma > 0).all() and (phi.sigma < 1e-4).all()


@pytest.mark.parametrize("family", [Gaussian, FullGaussian])
def test_an_unknown_estimator_says_so(family):
    words = f"^{family.__name__}: estimator must be 'rank-mu' or 'likelihood', got 'best guess'"
    with pytest.raises(ValueError, match=words):
        family(estimator="best guess")


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, torch.tensor([1.0, 0.0])])
def test_a_sigma_that_is_not_positive_says_so(sigma):
    with pytest.raises(ValueError, match=r"^Gaussian: sigma must be positive, got "):
        Gaussian(sigma=sigma)


@pytest.mark.parametrize("family", [Gaussian, FullGaussian])
def test_a_sigma_that_is_no_number_says_so(family):
    with pytest.raises(TypeError, match=rf"^{family.__name__}: sigma must be a number or a tensor, got"):
        family(sigma=[1.0, 2.0])


def test_a_sigma_of_another_size_says_so():
    with pytest.raises(
        ValueError, match=r"^Gaussian: sigma must broadcast against x0 of shape \(4, 2\), got"
    ):
        Gaussian(sigma=torch.ones(3)).init(torch.zeros(4, 2))


def test_is_frozen():
    with pytest.raises(AttributeError):
        Gaussian().sigma = 2.0


@pytest.mark.parametrize("bounds", [(-1.0, 3.0), (0, torch.inf), (-torch.inf, torch.inf)], ids=str)
def test_the_floor_of_bounds_that_are_numbers_is_a_number(bounds):
    u = torch.zeros(4, 2, dtype=torch.float64)
    floor = least_variance(None, Gaussian(bounds=bounds).box, u, 0.0)
    tensors = Gaussian(bounds=tuple(torch.tensor(float(b), dtype=u.dtype) for b in bounds))
    assert isinstance(floor, float)
    assert (least_variance(None, tensors.box, u, 0.0) == floor).all()

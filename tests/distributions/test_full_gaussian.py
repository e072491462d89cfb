"""The Gaussian with a full covariance."""

import numpy as np
import pytest
import torch

from dcem import DCEM, FullGaussian, Gaussian, minimize
from dcem.distributions.full_gaussian import FullGaussianState

pytestmark = pytest.mark.usefixtures("double")
BATCHES = [(), (2,), (2, 3)]


@pytest.mark.parametrize("batch", BATCHES)
def test_fit_is_the_weighted_mean_and_covariance(batch):
    u = torch.randn(*batch, 20, 3) @ torch.randn(3, 3)
    p = torch.rand(*batch, 20).softmax(-1)
    phi = FullGaussian(jitter=1e-12, estimator="likelihood").fit(None, u, p, sigma_min=0.0)
    covariance = (phi.scale_tril @ phi.scale_tril.mT).reshape(-1, 3, 3)
    for i, (rows, weights) in enumerate(zip(u.reshape(-1, 20, 3), p.reshape(-1, 20), strict=True)):
        expected = np.cov(rows.numpy(), rowvar=False, aweights=weights.numpy(), ddof=0)
        np.testing.assert_allclose(covariance[i].numpy(), expected, atol=1e-9)
    np.testing.assert_allclose(phi.mean.numpy(), (p.unsqueeze(-2) @ u).squeeze(-2).numpy(), atol=1e-12)
    assert torch.allclose(phi.sigma, covariance.diagonal(dim1=-2, dim2=-1).sqrt().reshape(*batch, 3))
    assert torch.equal(phi.scale_tril, phi.scale_tril.tril())


@pytest.mark.parametrize("n_iters", [10, 1000])
@pytest.mark.parametrize("batch", BATCHES)
def test_rank_mu_moves_the_covariance_towards_that_around_the_last_mean(batch, n_iters):
    u, w = torch.randn(*batch, 20, 3) + 2, torch.rand(*batch, 20)
    last = FullGaussianState(torch.randn(*batch, 3), torch.randn(*batch, 3, 3).tril())
    phi = FullGaussian(n_iters=n_iters).fit(last, u, w, 0.0)
    p = w / w.sum(-1, keepdim=True)
    mu = 1 / p.square().sum(-1, keepdim=True)
    hurry = torch.minimum(mu / (mu + 3), torch.tensor(46 / n_iters))
    c = torch.maximum(hurry, 0.22 * 3 * 2 * (mu - 1.75 + 1 / mu) / (25 + mu)).clamp_max(1).unsqueeze(-1)
    d = u - last.mean.unsqueeze(-2)
    target = (d * p.unsqueeze(-1)).mT @ d
    expected = (1 - c) * last.scale_tril @ last.scale_tril.mT + c * target
    assert torch.allclose(phi.mean, (p.unsqueeze(-1) * u).sum(-2))
    assert torch.allclose(phi.scale_tril @ phi.scale_tril.mT, expected, atol=1e-9)


@pytest.mark.parametrize("batch", BATCHES)
def test_samples_have_the_covariance(batch):
    tril = torch.tensor([[1.0, 0.0], [0.8, 0.3]])
    phi = FullGaussianState(torch.ones(*batch, 2), tril.expand(*batch, 2, 2))
    u = FullGaussian().sample(phi, torch.randn(*batch, 40_000, 2)).reshape(-1, 40_000, 2)
    assert torch.allclose(u[0].mean(0), torch.ones(2), atol=0.03)
    assert torch.allclose(u[0].T.cov(), tril @ tril.T, atol=0.05)


def test_first_state_is_the_diagonal_gaussian():
    x0, sigma, noise = torch.randn(2, 3), torch.tensor([0.5, 1.0, 2.0]), torch.randn(2, 9, 3)
    full, diagonal = FullGaussian(sigma=sigma), Gaussian(sigma=sigma)
    assert torch.allclose(full.init(x0).sigma, sigma.expand(2, 3))
    assert torch.allclose(full.sample(full.init(x0), noise), diagonal.sample(diagonal.init(x0), noise))


@pytest.mark.parametrize("boundary", ["clamp", "squash"])
def test_samples_are_inside(boundary):
    full = FullGaussian(sigma=3.0, bounds=(-1.0, 0.5), boundary=boundary)
    x = full.decode(full.sample(full.init(torch.zeros(4, 2)), torch.randn(4, 100, 2)))
    assert full.box.contains(x).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("n", "elites"), [(5, 1), (20, 2), (100, 3), (300, 10)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_fewer_elites_than_dimensions_still_factorise(dtype, n, elites, scale):
    """A low-rank covariance must not become indefinite by rounding: L Lᵀ stays the covariance."""
    u = (scale * (3 + torch.randn(50, n) * torch.logspace(-2, 2, n))).to(dtype).requires_grad_()
    p = torch.zeros(50, dtype=dtype)
    p[:elites] = 1 / elites
    phi = FullGaussian(sigma=scale, estimator="likelihood").fit(None, u, p, 0.0)
    d = (u - phi.mean).detach().double()
    expected = (d * p.double()[:, None]).T @ d
    eps = torch.finfo(dtype).eps
    floor = (64 * eps * phi.mean.detach().double()).square() + (eps ** (2 / 3) * scale) ** 2
    expected += torch.diag(floor)
    actual = (phi.scale_tril @ phi.scale_tril.mT).detach().double()
    assert (actual - expected).norm() <= (1e-3 if dtype == torch.float32 else 1e-5) * expected.norm()
    (gradient,) = torch.autograd.grad(phi.scale_tril.sum(), u)
    assert gradient.isfinite().all()


def test_samples_that_all_agree_have_a_finite_gradient():
    for dtype in (torch.float32, torch.float64):
        u = torch.ones(10, 3, dtype=dtype, requires_grad=True)
        phi = FullGaussian(estimator="likelihood").fit(None, u, torch.full((10,), 0.1, dtype=dtype), 0.0)
        (gradient,) = torch.autograd.grad(phi.mean.sum() + phi.scale_tril.sum(), u)
        assert gradient.isfinite().all() and phi.scale_tril.isfinite().all()


def test_sigma_min_is_a_floor():
    u = torch.randn(20, 3) * torch.tensor([1e-3, 1.0, 0.0])
    phi = FullGaussianState(torch.zeros(3), 1e-3 * torch.eye(3))
    for estimator in ("rank-mu", "likelihood"):
        fitted = FullGaussian(estimator=estimator).fit(phi, u, torch.full((20,), 0.05), 0.1)
        assert (fitted.sigma >= 0.1).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_factorises_in_float32(dtype):
    u = torch.randn(50, 3).to(dtype)
    phi = FullGaussian(estimator="likelihood").fit(None, u, torch.full((50,), 0.02, dtype=dtype), 0.0)
    assert phi.scale_tril.dtype == dtype
    expected = np.cov(u.double().numpy(), rowvar=False, ddof=0)
    np.testing.assert_allclose((phi.scale_tril @ phi.scale_tril.mT).double().numpy(), expected, atol=0.05)


def test_learns_that_dimensions_go_together():
    """A narrow diagonal valley: the covariance turns into it, and beats the diagonal Gaussian."""

    def valley(x):
        return 1000 * (x[..., 0] - x[..., 1]).square() + (x.sum(-1) - 4).square()

    def solve(family):
        solver = DCEM(n_samples=100, n_elite=10, n_iters=15, tau=0.1, distribution=family(sigma=1.0))
        return minimize(valley, solver, torch.zeros(8, 2), generator=torch.Generator().manual_seed(0))

    correlated = solve(FullGaussian)
    assert torch.allclose(correlated.x.median(0).values, torch.full((2,), 2.0), atol=0.01)
    assert correlated.cost.mean() < solve(Gaussian).cost.mean()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"boundary": "truncate"}, "boundary must be 'clamp' or 'squash', got 'truncate'"),
        ({"jitter": 0.0}, "jitter must be positive, got 0.0"),
        ({"sigma": -1.0}, "sigma must be positive, got -1.0"),
    ],
)
def test_bad_settings_say_what_is_wrong(settings, words):
    with pytest.raises(ValueError, match=f"^FullGaussian: {words}"):
        FullGaussian(**settings)

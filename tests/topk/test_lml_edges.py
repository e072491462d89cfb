"""LML at its edges: every temperature, k = n, entries that are not finite, the ends of each dtype."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit, log_expit, logsumexp
from torch import Tensor

from dcem import MPPI, lml
from dcem.topk import hard_topk
from dcem.topk.dual import from_threshold
from dcem.topk.lml import soft_topk
from dcem.topk.standardize import standardize

TAUS = [1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 1e3, 1e8]
ROWS = {
    "normal": lambda n: np.random.default_rng(0).normal(size=n),
    "ties": lambda n: np.random.default_rng(1).integers(0, 3, n).astype(float),
    "heavy": lambda n: np.random.default_rng(2).standard_cauchy(n),
    "clusters": lambda n: np.random.default_rng(3).integers(0, 2, n) * 100 + np.linspace(0, 1e-3, n),
    "constant": lambda n: np.ones(n),
    "skewed": lambda n: np.exp(3 * np.random.default_rng(4).normal(size=n)),
}


def oracle(x: np.ndarray, k: float, tau: float) -> np.ndarray:
    """z = a + ν in float64. What those left out get equals what those chosen lack: in logarithms, so that
    the root is known where the weights are 0 and 1 to rounding."""
    order = np.sort(x)[::-1]
    lower = order[math.floor(k)]
    above, tied = x > lower, x == lower
    share = (k - above.sum()) / tied.sum()
    with np.errstate(divide="ignore"):
        log_h = np.log(np.where(tied, share, above))
        log_rest = np.log(np.where(tied, 1 - share, ~above))
    upper = order[math.ceil(k) - 1]
    a = ((x - lower) - (upper - lower) / 2) / tau
    nu = brentq(
        lambda nu: logsumexp(log_rest + log_expit(a + nu)) - logsumexp(log_h + log_expit(-a - nu)),
        -100, 100, xtol=1e-14, rtol=1e-15,
    )  # fmt: skip
    return a + nu


def problems(dtype: torch.dtype):
    for n in (2, 100):
        for k in (1.0, n / 2, n - 0.25, n / 2 + 0.25):
            for kind in ROWS:
                for offset in (0.0, 1e4):
                    yield torch.as_tensor(ROWS[kind](n) + offset).to(dtype), k, f"{kind} + {offset}, k = {k}"


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("path", ["number", "tensor", "func"])
def test_weights_and_gradients_are_right_at_every_temperature(dtype, tau, path):
    """To a few roundings of what they are made of, which no cancelling or underflow may amplify."""
    eps, tiny = torch.finfo(dtype).eps, torch.finfo(dtype).tiny
    for x, k, where in problems(dtype):
        g = torch.linspace(-1, 2, x.shape[-1], dtype=dtype).flip(0)
        k_leaf, tau_leaf = (torch.tensor(v, dtype=dtype, requires_grad=True) for v in (k, tau))
        x_leaf = x.clone().requires_grad_()
        z = oracle(x.double().numpy(), k, tau_leaf.item())
        log_s = log_expit(z) + log_expit(-z)
        s, p = np.exp(log_s), np.exp(log_s - logsumexp(log_s))
        gk = (p * g.double().numpy()).sum()
        ga = s * (g.double().numpy() - gk)
        if path == "func":
            y = lml(x, k, tau_leaf)
            gx, got_k, got_tau = torch.func.grad(lambda *v, g=g: (lml(*v) * g).sum(), (0, 1, 2))(
                x, k_leaf.detach(), tau_leaf.detach()
            )
        else:
            y = lml(x_leaf, k if path == "number" else k_leaf, tau_leaf)
            gx, got_k, got_tau = torch.autograd.grad(y, (x_leaf, k_leaf, tau_leaf), g, allow_unused=True)
        near = np.abs(z).min()  # z itself is known to eps |z|
        assert np.abs(y.detach().double().numpy() - expit(z)).max() <= 20 * eps, where
        scale = ((s * (2 + np.abs(z))).sum() * (1 + near) + tiny / eps) / tau_leaf.item()
        assert np.abs(gx.double().numpy() - ga / tau_leaf.item()).max() <= 100 * eps * scale, where
        scale *= 1 + np.abs(z[s > 0]).max(initial=0)
        assert abs(got_tau.item() + (ga * z).sum() / tau_leaf.item()) <= 100 * eps * scale, where
        if path != "number":
            assert abs(got_k.item() - gk) <= 100 * eps * (1 + near), where


def test_the_gradient_to_tau_of_a_decided_row_is_not_amplified_rounding():
    x = torch.randn(100, generator=torch.Generator().manual_seed(0))
    tau = torch.tensor(1e-4, requires_grad=True)
    g = torch.randn(100, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad(lml(x, 10, tau), tau, g)
    assert abs(gradient.item()) < 1e-6


@pytest.mark.parametrize("k", [1.0, 30.0, 30.5, 99.0])
def test_the_fixed_number_of_steps_leaves_rounding(k):
    """The weights sum to k, whatever the row: the count is enough."""
    for dtype in (torch.float32, torch.float64):
        for kind in ROWS:
            x = torch.as_tensor(ROWS[kind](100)).to(dtype)
            for tau in TAUS:
                z = from_threshold(x, k, tau)
                wrong = torch.sigmoid(z).double().sum().item() - k
                assert abs(wrong) <= 500 * torch.finfo(dtype).eps, (kind, tau, dtype)


# --------------------------------------------------------------------------- k = n


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
@pytest.mark.parametrize("k", [4, torch.tensor(4.0, requires_grad=True)], ids=["number", "tensor"])
@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_everything_chosen_is_connected_and_passes_zero(shape, k, tau):
    x = torch.randn(shape, requires_grad=True)
    y = lml(x, k, tau)
    assert torch.equal(y, torch.ones(shape))
    y.square().sum().backward()
    assert torch.equal(x.grad, torch.zeros(shape))


# --------------------------------------------------------------------------- entries that are not finite


@pytest.mark.parametrize("bad", [-math.inf, math.nan])
@pytest.mark.parametrize("tau", [1e-6, 1e-2, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [(), (3,)])
def test_minus_infinity_and_nan_get_nothing_and_the_others_share_as_if_alone(bad, tau, dtype, rows):
    finite = torch.tensor([2.0, 1.0, -1.0, 0.3], dtype=dtype)
    g = torch.tensor([0.3, -1.0, 2.0, 0.7], dtype=dtype)

    def run(x: Tensor, g: Tensor) -> list[Tensor]:
        leaves = [
            x.clone().requires_grad_(),
            *(torch.tensor(v, dtype=dtype, requires_grad=True) for v in (1.5, tau)),
        ]
        y = lml(*leaves)
        return [y.detach(), *torch.autograd.grad(y, leaves, g)]

    x, at = torch.full((*rows, 6), bad, dtype=dtype), [0, 2, 3, 5]
    x[..., at] = finite
    padded = torch.ones(*rows, 6, dtype=dtype)
    padded[..., at] = g
    y, gx, gk, gtau = run(x, padded)
    alone, alone_x, alone_k, alone_tau = run(finite.expand(*rows, 4), g.expand(*rows, 4))
    close = {
        "rtol": 1e-4 if dtype == torch.float32 else 1e-9,
        "atol": 1e-6 if dtype == torch.float32 else 1e-12,
    }
    torch.testing.assert_close(y[..., at], alone, **close)
    torch.testing.assert_close(gx[..., at], alone_x, **close)
    torch.testing.assert_close(gk, alone_k, **close)
    torch.testing.assert_close(gtau, alone_tau, **close)
    for left_out in (1, 4):
        assert (y[..., left_out] == 0).all() and (gx[..., left_out] == 0).all()


@pytest.mark.parametrize("tau", [0, 1e-3, 1.0])
@pytest.mark.parametrize("k", [3, torch.tensor(3.0)], ids=["number", "tensor"])
def test_plus_infinity_is_chosen_first(tau, k):
    x = torch.tensor([math.inf, 1.0, math.nan, 0.0, -1.0, 0.5], requires_grad=True)
    y = lml(x, k, tau)
    assert y[0] == 1 and y[2] == 0 and math.isclose(y.sum().item(), 3, rel_tol=1e-6)
    torch.testing.assert_close(y[[1, 3, 4, 5]], lml(x[[1, 3, 4, 5]], 2, tau))
    if tau:
        (gradient,) = torch.autograd.grad(y[1], x)
        assert gradient.isfinite().all() and gradient[0] == 0 and gradient[2] == 0


@pytest.mark.parametrize("tau", [1e-3, 1.0, math.inf])
def test_more_infinities_than_k_share_it(tau):
    x = torch.tensor([math.inf, 1.0, math.inf, math.inf], requires_grad=True)
    k = torch.tensor(2.0, requires_grad=True)
    y = lml(x, k, tau)
    torch.testing.assert_close(y, torch.tensor([2 / 3, 0.0, 2 / 3, 2 / 3]))
    gx, gk = torch.autograd.grad(y[0], (x, k))
    assert torch.equal(gx, torch.zeros(4)) and math.isclose(gk.item(), 1 / 3, rel_tol=1e-6)


@pytest.mark.parametrize("tau", [0, 1e-3, 1.0, torch.tensor(1.0)], ids=str)
@pytest.mark.parametrize("k", [2.0, 2.5, torch.tensor(2.0)], ids=str)
def test_where_at_most_k_are_left_each_gets_one(tau, k):
    for row, expected in (
        ([1.0, -math.inf, math.nan, -2.0], [1.0, 0.0, 0.0, 1.0]),
        ([math.nan, -math.inf, math.inf, math.nan], [0.0, 0.0, 1.0, 0.0]),
        ([math.nan] * 4, [0.0] * 4),
    ):
        x = torch.tensor([row, [1.0, 2.0, 3.0, 4.0]], requires_grad=True)
        y = lml(x, k, tau)
        assert torch.equal(y[0], torch.tensor(expected))
        if y.requires_grad:
            (gradient,) = torch.autograd.grad(y[0].sum(), x)
            assert torch.equal(gradient, torch.zeros(2, 4))


@pytest.mark.parametrize("k", [2, torch.tensor([2.0])], ids=["number", "tensor"])
def test_the_hard_top_k_passes_over_nan_and_minus_infinity(k):
    x = torch.tensor([math.nan, 1.0, -math.inf, 0.0, math.inf])
    assert torch.equal(hard_topk(x, k), torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0]))
    assert torch.equal(hard_topk(x, k, finite_only=True), torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0]))
    assert torch.equal(hard_topk(x[[0, 2, 3]], k), torch.tensor([0.0, 0.0, 1.0]))


# --------------------------------------------------------------------------- the ends of each dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_takes_a_temperature_that_only_float32_holds(dtype):
    """2^-20, in float16 a subnormal number, and entries that are as close."""
    x = (torch.tensor([3.0, 2.0, 1.0, 0.0]) * 2**-20).to(dtype)
    torch.testing.assert_close(lml(x, 2, 2.0**-20), lml(x.float(), 2, 2.0**-20).to(dtype))
    assert 0.5 < lml(x, 2, 2.0**-20)[1] < 0.8


SCALES = [1e-25, 1e-8, 1e8, 1e20]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize("solver", ["dcem", "mppi"])
def test_standardised_weights_ignore_the_scale_in_float32(scale, spoilt, solver):
    values = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    if spoilt:
        values[1, 7], values[2, 3] = math.nan, math.inf

    def weights(v: Tensor) -> Tensor:
        if solver == "mppi":
            return MPPI(n_samples=50).weights(v, 0)
        return soft_topk(-v, 5, 0.5, scaling=True, finite_only=True)

    torch.testing.assert_close(weights(values * scale), weights(values), rtol=1e-4, atol=1e-6)
    leaf = (values * scale).requires_grad_()
    (gradient,) = torch.autograd.grad(weights(leaf)[:, 0].sum(), leaf)
    unit = values.clone().requires_grad_()
    (expected,) = torch.autograd.grad(weights(unit)[:, 0].sum(), unit)
    assert gradient.isfinite().all()
    torch.testing.assert_close(gradient * scale, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
@pytest.mark.parametrize("masked", [False, True])
def test_derivatives_of_standardising(check, masked, double):
    x = (3 * torch.randn(2, 5) + 10).requires_grad_()
    good = torch.tensor([[True, True, not masked, True, True], [True] * 5])
    assert check(lambda x: standardize(x, good), (x,))


@pytest.mark.parametrize(
    "row", [[5.0, 5.0, 5.0], [0.0, 0.0, 0.0], [1e-40, 2e-40, 3e-40], [1e6, 1e6 + 0.0625, 1e6]]
)
def test_a_row_without_information_standardises_to_zero_with_zero_gradient(row):
    x = torch.tensor(row, requires_grad=True)
    u = standardize(x, torch.ones(3, dtype=torch.bool))
    assert torch.equal(u, torch.zeros(3))
    (gradient,) = torch.autograd.grad(u.sum(), x)
    assert torch.equal(gradient, torch.zeros(3))

"""LML: values, arguments and robustness."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import dcem
from dcem import _native, lml
from dcem.topk.lml import soft_topk

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
# How far the sum of the weights may be from k, relative to k. In half precision rounding the weights decides.
SUM_ERROR = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}


def oracle(x: np.ndarray, k: float, tau: float) -> np.ndarray:
    """One row in float64, by bisection-like root finding on Σ σ((x - c) / tau + ν) = k."""
    n = len(x)
    if k == n:
        return np.ones(n)
    a = (x - np.sort(x)[::-1][min(int(k), n - 1)]) / tau
    shift = math.log(k / (n - k))
    low, high = shift - a.max() - 1, shift - a.min() + 1
    nu = brentq(lambda nu: expit(a + nu).sum() - k, low, high, xtol=1e-15, rtol=1e-15, maxiter=2000)
    return expit(a + nu)


# --------------------------------------------------------------------------- fuzzing

_KINDS_OF_ROW = {
    "normal": torch.randn,
    "uniform": torch.rand,
    "ties": lambda *shape: torch.randint(0, 3, shape).double(),
    "constant": lambda *shape: torch.ones(shape),
    "heavy": lambda *shape: torch.distributions.Cauchy(0.0, 1.0).sample(shape),
    "clusters": lambda *shape: torch.randint(0, 2, shape) * 100.0 + torch.randn(shape) * 1e-3,
    "skewed": lambda *shape: (3 * torch.randn(shape)).exp(),
}


def fuzzed(rng: np.random.Generator, dtype: torch.dtype, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """x (rows, n), and k and tau, one a row."""
    n = int(np.exp(rng.uniform(math.log(2), math.log(2000))))
    kinds = list(_KINDS_OF_ROW.values())
    x = torch.stack([kinds[rng.integers(len(kinds))](n).double() for _ in range(rows)])
    scale = torch.as_tensor(10 ** rng.uniform(-6, 6, (rows, 1)))
    offset = torch.as_tensor(rng.choice([-1, 0, 1], (rows, 1)) * 10 ** rng.uniform(-6, 6, (rows, 1)))
    x = (x * scale + offset).clamp(*(bound / 4 for bound in (torch.finfo(dtype).min, torch.finfo(dtype).max)))
    choices = [
        1,
        n - 1,
        n,
        n / 2,
        0.5,
        n - 0.5,
        1e-3,
        n - 1e-3,
        *rng.uniform(0, n, 4),
        *rng.integers(1, n, 4),
    ]
    k = torch.as_tensor(rng.choice(np.array(choices, float), rows)).clamp(1e-3, n)
    tau = torch.as_tensor(10 ** rng.uniform(-3, 2, rows))
    return x.to(dtype), k, tau


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fuzzed_rows_have_finite_weights_and_gradients_and_sum_to_k(dtype):
    """2,500 rows a dtype; every third draw passes k and tau as numbers, every ninth is a single row."""
    rng = np.random.default_rng(0)
    done, draw = 0, 0
    while done < 2500:
        rows = 1 if draw % 9 == 0 else 10
        x, k, tau = fuzzed(rng, dtype, rows)
        if draw % 3 == 0:
            k, tau = k[:1].expand(rows), tau[:1].expand(rows)
        inputs = [v.clone().requires_grad_() for v in (x, k, tau)]
        y = lml(inputs[0], k[0].item(), tau[0].item()) if draw % 3 == 0 else lml(*inputs)
        wanted = inputs[:1] if draw % 3 == 0 else inputs
        where = f"draw {draw}: n={x.shape[-1]}, k={k.tolist()}, tau={tau.tolist()}"
        assert y.dtype == dtype and y.shape == x.shape
        assert ((y >= 0) & (y <= 1)).all(), where
        info = torch.finfo(dtype)
        slack = SUM_ERROR[dtype] * k + x.shape[-1] * info.tiny * info.eps  # a denormal weight's last place
        assert ((y.double().sum(-1) - k).abs() <= slack).all(), where
        if y.requires_grad:  # not when k = n: the weights are constant
            gradients = torch.autograd.grad(y, wanted, torch.randn_like(y))
            assert all(g.isfinite().all() for g in gradients), where
        done, draw = done + rows, draw + 1


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)], ids=str)
def test_agrees_with_a_root_finder(dtype, tolerance):
    """50 draws of 10 rows against the oracle, which sees the same (rounded) numbers in float64.

    A float32 sum is known to eps times itself only, and one undecided weight can bear all of that.
    """
    rng = np.random.default_rng(1)
    for _ in range(50):
        x, k, tau = fuzzed(rng, dtype, rows=10)
        k, tau = k.to(dtype), tau.to(dtype)
        expected = [oracle(*row) for row in zip(x.double().numpy(), k.tolist(), tau.tolist(), strict=True)]
        error = np.abs(lml(x, k, tau).double().numpy() - np.stack(expected)).max(-1)
        summed = torch.minimum(k, x.shape[-1] - k).numpy()  # k are chosen, or n - k left out
        assert (error <= tolerance + 2 * torch.finfo(dtype).eps * summed).all()


def test_agrees_with_a_root_finder_as_used_in_planning():
    """N = 100 normalised costs, 10 elites: float32 to 1e-6 without allowances, and single rows too."""
    for tau in (0.1, 1.0, 10.0):
        x = torch.randn(30, 100)
        expected = np.stack([oracle(row, 10, tau) for row in x.double().numpy()])
        np.testing.assert_allclose(lml(x, 10, tau).numpy(), expected, atol=1e-6)
        np.testing.assert_allclose(lml(x[0], 10, tau).numpy(), expected[0], atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES[2:], ids=str)
def test_half_precision_is_computed_in_float32(dtype):
    x = torch.randn(8, 1000).to(dtype)
    for k in (100, torch.tensor(100), torch.full((8,), 257.0)):
        exact = lml(x.float(), k)
        assert torch.equal(lml(x, k), exact.to(dtype))


@pytest.mark.parametrize(
    ("dtype", "n", "k"), [(torch.bfloat16, 400, 257.0), (torch.float16, 3000, 2049.0)], ids=str
)
def test_half_precision_does_not_round_a_tensor_k(dtype, n, k):
    x = torch.randn(n).to(dtype)
    assert torch.equal(lml(x, torch.tensor(k)), lml(x, k))


# --------------------------------------------------------------------------- special cases


def test_known_values(double):
    # k = n / 2 of a row that is symmetric about its centre: ν = 0.
    x = torch.tensor([-2.0, -1.0, 1.0, 2.0])
    assert torch.allclose(lml(x, 2), torch.sigmoid(x), atol=1e-15)
    assert torch.allclose(lml(x + 7, 2, tau=0.5), torch.sigmoid(2 * x), atol=1e-14)
    # Two entries, k = 1: logistic in half their difference.
    assert torch.allclose(lml(torch.tensor([3.0, 1.0]), 1)[0], torch.sigmoid(torch.tensor(1.0)), atol=1e-15)


def test_k_one_is_not_a_softmax(double):
    x = torch.tensor([2.0, 1.0, 0.0])
    assert (lml(x, 1) - x.softmax(-1)).abs().max() > 1e-2


@pytest.mark.parametrize(
    "k", [5, 5.0, np.int64(5), torch.tensor(5), torch.tensor(5.0), torch.full((3,), 5.0)]
)
def test_k_equal_to_n_gives_ones(k):
    assert torch.equal(lml(torch.randn(3, 5), k), torch.ones(3, 5))


@pytest.mark.parametrize("number", [np.int64, np.float32, np.float64])
def test_numpy_numbers_are_numbers(number):
    x = torch.randn(3, 5)
    assert torch.equal(lml(x, number(2), number(1)), lml(x, 2, 1.0))
    assert torch.equal(lml(x, number(2), number(0)), lml(x, 2, 0))


def test_constant_row_shares_k_evenly():
    assert torch.allclose(lml(torch.full((2, 8), 3.0), 2.0), torch.full((2, 8), 0.25))


@pytest.mark.parametrize("k", [1, 3, 2.5, torch.tensor(2.5), torch.tensor([1.0, 3.5])])
def test_tau_zero_is_the_hard_top_k_and_small_tau_tends_to_it(k, double):
    x = torch.randn(2, 9)
    hard = lml(x, k, tau=0)
    assert torch.allclose(hard.sum(-1), torch.as_tensor(k).double())
    rank = x.argsort(-1, descending=True).argsort(-1)
    expected = (torch.as_tensor(k).double().reshape(-1, 1) - rank).clamp(0, 1)
    assert torch.equal(hard, expected)
    assert torch.allclose(lml(x, k, tau=1e-9), hard, atol=1e-9)


@pytest.mark.parametrize("tau", [1e-30, 1e-40, 1e-300, 1e-310])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [1, 2])
def test_vanishing_tau_has_no_nan(tau, dtype, rows):
    x = torch.tensor([[3.0, 1.0, 2.0, 0.5]], dtype=dtype).expand(rows, -1).clone().requires_grad_()
    y = lml(x, 2, tau)
    (gradient,) = torch.autograd.grad(y[..., 0].sum(), x)
    assert torch.equal(y, lml(x, 2, 0)) and not gradient.isnan().any()


def test_zero_as_a_tensor_tau_is_refused():
    """It would turn into NaN gradients."""
    with pytest.raises(ValueError, match=r"^lml: tau must be > 0"):
        lml(torch.randn(3, 5), 2, torch.tensor([1.0, 0.0, 1.0]))


def test_infinite_tau_is_uniform():
    assert torch.allclose(lml(torch.randn(4), 1, math.inf), torch.full((4,), 0.25))


@pytest.mark.parametrize("rows", [(), (3,)])
@pytest.mark.parametrize("offset", [0.0, -5000.0, 5000.0])
@pytest.mark.parametrize("k", [1, 2, 1.5])
def test_minus_infinity_gets_weight_zero(rows, offset, k, double):
    finite = torch.tensor([2.0, 1.0, -1.0]) + offset
    x = torch.cat([finite[:2], torch.tensor([-math.inf]), finite[2:]]).expand(*rows, 4).clone()
    x.requires_grad_()
    y = lml(x, k)
    assert torch.allclose(y[..., [0, 1, 3]], lml(finite, k), atol=1e-10)
    assert (y[..., 2] == 0).all()
    (gradient,) = torch.autograd.grad(y[..., 0].sum(), x)
    assert gradient.isfinite().all()


def test_minus_infinity_with_exactly_k_finite_entries(double):
    x = torch.tensor([[-5000.0, -math.inf, -5001.0], [3.0, -math.inf, 2.0]])
    assert torch.allclose(lml(x, 2), torch.tensor([[1.0, 0.0, 1.0]]).expand(2, 3))


def test_tiny_k_and_nearly_n(double):
    x = torch.randn(100)
    for k in (1e-6, 100 - 1e-6):
        assert math.isclose(lml(x, k).sum().item(), k, rel_tol=1e-10)
        np.testing.assert_allclose(lml(x, k).numpy(), oracle(x.numpy(), k, 1.0), atol=1e-13)


# --------------------------------------------------------------------------- shapes and arguments


@pytest.mark.parametrize("batch", [(), (1,), (2,), (2, 3), (0,), (2, 0)], ids=str)
def test_any_leading_dimensions(batch):
    x = torch.randn(*batch, 7)
    y = lml(x, 3)
    assert y.shape == x.shape
    one_by_one = [lml(row, 3) for row in x.reshape(-1, 7)] if x.numel() else []
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(y.reshape(-1, 7), one_by_one, strict=True))
    assert lml(x, torch.tensor(3.0), torch.tensor(1.0)).shape == x.shape


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_dim(dim, double):
    x = torch.randn(4, 5, 6)
    y = lml(x, 2, 0.7, dim=dim)
    assert torch.allclose(y.sum(dim), torch.full_like(y.sum(dim), 2.0))
    assert torch.allclose(y.movedim(dim, -1), lml(x.movedim(dim, -1), 2, 0.7), atol=1e-14)


def test_tensor_k_and_tau_broadcast_over_the_rows(double):
    x = torch.randn(2, 3, 8)
    k = torch.tensor([1.0, 2.5, 8.0])
    tau = torch.tensor([[0.3], [2.0]])
    y = lml(x, k, tau)
    for i in range(2):
        for j in range(3):
            assert torch.allclose(y[i, j], lml(x[i, j], k[j].item(), tau[i, 0].item()), atol=1e-12)


def test_tensor_k_and_tau_with_another_dim(double):
    x, k = torch.randn(8, 3), torch.tensor([1.0, 2.0, 3.0])
    assert torch.allclose(lml(x, k, k, dim=0).T, lml(x.T.contiguous(), k, k), atol=1e-14)


def test_integer_and_float64_tensors_follow_the_dtype_of_x():
    x = torch.randn(3, 8)
    y = lml(x, torch.tensor([1, 2, 3]), torch.ones((), dtype=torch.float64))
    assert y.dtype == torch.float32
    assert torch.allclose(y.sum(-1), torch.tensor([1.0, 2.0, 3.0]))


def test_memory_layout_does_not_matter():
    x = torch.randn(9, 6, 5).permute(2, 1, 0)
    assert torch.allclose(lml(x, 2), lml(x.contiguous(), 2), atol=1e-6)
    assert torch.allclose(lml(x[..., ::2], 2), lml(x[..., ::2].contiguous(), 2), atol=1e-6)


def test_input_is_left_alone():
    x = torch.randn(3, 8)
    before = x.clone()
    lml(x, 2)
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: lml(x, 0), ValueError, r"k must satisfy 0 < k <= n = 4, got 0"),
        (lambda x: lml(x, 5), ValueError, r"k must satisfy 0 < k <= n = 4, got 5"),
        (lambda x: lml(x, -1.5), ValueError, r"k must satisfy 0 < k <= n = 4, got -1.5"),
        (lambda x: lml(x, math.nan), ValueError, r"k must satisfy 0 < k <= n = 4, got nan"),
        (lambda x: lml(x, torch.tensor([1.0, 5.0])), ValueError, r"k must satisfy 0 < k <= n = 4, got 5"),
        (lambda x: lml(x, 1, -0.1), ValueError, r"tau must be >= 0, got -0.1"),
        (lambda x: lml(x, 1, math.nan), ValueError, r"tau must be >= 0, got nan"),
        (
            lambda x: lml(x, 1, torch.tensor([1.0, -1.0])),
            ValueError,
            r"tau must be > 0 where it is a tensor, got -1",
        ),
        (
            lambda x: lml(x, torch.ones(3)),
            ValueError,
            r"k must broadcast over the rows \(2,\), got shape \(3,\)",
        ),
        (lambda x: lml(x, 1, torch.ones(3)), ValueError, r"tau must broadcast over the rows \(2,\)"),
        (lambda x: lml(x[0], torch.ones(3)), ValueError, r"k must broadcast over the rows \(\), got"),
        (lambda x: lml(x, 1, dim=2), ValueError, r"dim must be a dimension of x.*\(2, 4\), got 2"),
        (lambda x: lml(x[0, 0], 1), ValueError, r"dim must be a dimension of x.*\(\), got -1"),
        (lambda x: lml(x.long(), 1), TypeError, r"x must be a floating-point tensor, got torch.int64"),
        (lambda x: lml([1.0, 2.0], 1), TypeError, r"x must be a floating-point tensor, got list"),
    ],
)
def test_a_bad_call_says_what_is_wrong(call, error, words):
    with pytest.raises(error, match="^lml: " + words):
        call(torch.randn(2, 4))


def test_is_public():
    assert dcem.lml is lml


# --------------------------------------------------------------------------- standardised rows


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1e-18, 1e-8, 1e8, 1e18])
def test_standardised_rows_ignore_scale(rows, dtype, scale):
    x = torch.randn(rows, 20, dtype=dtype)
    weight = torch.randn(rows, 20, dtype=dtype)

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone().requires_grad_()
        y = soft_topk(x, 5, 0.8, scaling=True)
        return y.detach(), torch.autograd.grad(y, x, weight)[0]

    y, gradient = run(x)
    scaled_y, scaled_gradient = run(x * scale)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert torch.allclose(y, scaled_y, atol=tolerance)
    assert torch.allclose(gradient, scaled_gradient * scale, atol=tolerance)


@pytest.mark.parametrize("scale", [1e-25, 1e-21, 3e-20, 1e20, 1e25])
def test_standardised_rows_at_the_ends_of_float32(scale):
    """Squares under- or overflow here; the gradient must stay finite all the same."""
    x = (torch.randn(4, 20) * scale).requires_grad_()
    y = soft_topk(x, 5, 1.0, scaling=True)
    (gradient,) = torch.autograd.grad(y[..., 0].sum(), x)
    assert torch.allclose(y.sum(-1), torch.full((4,), 5.0))
    assert gradient.isfinite().all()


def test_one_huge_penalty_gets_no_weight_after_standardising():
    """Costs of 1, 2, 3 and a penalty of 1e20, whose square overflows in float32."""
    y = soft_topk(-torch.tensor([[1.0, 2.0, 3.0, 1e20]]), 2, 0.1, scaling=True)
    assert y[0, 3] < 1e-3


def test_a_row_constant_to_rounding_is_uniform_after_standardising():
    x = 1e6 + torch.randn(3, 10, dtype=torch.float64) * 1e-11
    assert torch.allclose(soft_topk(x, 2, 1.0, scaling=True), torch.full_like(x, 0.2))


class FromHost(TorchDispatchMode):
    """Notices tensors made of Python's numbers, which a CUDA graph cannot copy to the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten.lift_fresh.default
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("k", [3, 3.5])
@pytest.mark.parametrize("normalize", [False, True, "half"])
def test_no_constant_comes_from_the_host(monkeypatch, k, normalize):
    monkeypatch.setattr(_native, "kernels", dict)  # not by DCEM_NATIVE, which is read once in a process
    x = torch.randn(2, 20, requires_grad=True)
    with FromHost():
        torch.autograd.grad(soft_topk(x, k, 0.5, normalize).square().sum(), x)

"""The fused kernel against the plain path in float64, and what a CUDA graph or torch.compile asks of it."""

import math
import random
from functools import partial

import pytest
import torch

import dcem
from dcem.topk.lml import soft_topk

finite_topk = partial(soft_topk, finite_only=True)

pytestmark = pytest.mark.gpu


def problem(seed: int, dtype: torch.dtype) -> tuple[torch.Tensor, float, float, torch.Tensor]:
    choose = random.Random(seed)
    g = torch.Generator().manual_seed(seed)
    n = choose.choice([2, 3, 7, 32, 100, 999, 1000, 2048, 5000, 16384])
    rows = choose.choice([1, 3, 16])
    x = torch.randn(rows, n, generator=g, dtype=torch.float64)
    kind = choose.choice(["normal", "ties", "heavy", "constant", "exp"])
    if kind == "ties":
        x = (2 * x).round()
    if kind == "heavy":
        x = x / torch.randn(rows, n, generator=g, dtype=torch.float64)
    if kind == "constant":
        x = torch.zeros_like(x)
    if kind == "exp":
        x = (3 * x).exp()
    x = x * 10 ** choose.uniform(-6, 6) + choose.choice([0.0, choose.uniform(-1e6, 1e6)])
    k = choose.choice([1, n, n - 1, choose.randint(1, n), choose.uniform(0.01, n)])
    tau = choose.choice([1.0, 10 ** choose.uniform(-3, 3)])
    return x.to(dtype).cuda(), max(k, 1e-3), tau, torch.randn(rows, n, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("standardize", [False, True])
def test_same_answers_as_the_plain_path(dtype: torch.dtype, standardize: bool) -> None:
    for seed in range(300):
        x, k, tau, g = problem(seed, dtype)
        x.requires_grad_()
        y = soft_topk(x, k, tau, standardize)
        (gx,) = torch.autograd.grad(y, x, g.to(y)) if y.requires_grad else (torch.zeros_like(x),)
        x64 = x.detach().double().cpu().requires_grad_()
        y64 = soft_topk(x64, k, tau, standardize)
        (gx64,) = torch.autograd.grad(y64, x64, g) if y64.requires_grad else (torch.zeros_like(x64),)
        # What float32 can know: y moves by up to slope·(rounding of x)/tau.
        scale = tau * (x64.detach().std(-1).min().item() + 1e-300 if standardize else 1.0)
        a_rounding = torch.finfo(dtype).eps * x.detach().abs().max().item() / scale
        tolerance = (2e-6 if dtype == torch.float32 else 1e-12) + min(a_rounding, 1e-3)
        assert y.isfinite().all() and gx.isfinite().all(), seed
        if standardize and (x64.std(-1) <= 1e4 * torch.finfo(dtype).eps * x64.abs().amax(-1)).any():
            continue  # constant to rounding: which of its digits mean something differs between dtypes
        assert (y.double().sum(-1) - k).abs().max().item() <= (
            1e-5 if dtype == torch.float32 else 1e-10
        ) * k, seed
        assert (y.double().cpu() - y64).abs().max().item() <= tolerance * 50, (seed, k, tau, x.shape)
        assert (
            gx.double().cpu() - gx64
        ).abs().max().item() <= 1e-3 * gx64.abs().max().item() + tolerance / scale, seed


def test_relative_agreement_in_float32_on_ordinary_rows() -> None:
    for n, k in [(100, 10), (1000, 100), (1000, 10), (4096, 400), (16384, 1000)]:
        for tau in (1.0, 0.1, 0.01):
            x = torch.randn(64, n)
            y = dcem.lml(x.cuda(), k, tau).cpu().double()
            exact = dcem.lml(x.double(), k, tau)
            assert ((y - exact).norm() / exact.norm()).item() <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_entry_far_above_the_others(dtype: torch.dtype) -> None:
    """Σ y is k to rounding for any ν between them. At the root the others have what it lacks."""
    x = torch.zeros(1, 40, dtype=dtype, device="cuda")
    x[0, 7] = 0.8
    weight = math.exp(-0.8 / 0.01 / 2) / math.sqrt(39)  # 7e-19
    expected = torch.full((1, 40), weight, dtype=torch.float64)
    expected[0, 7] = 1.0
    rtol = 2e-5 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(dcem.lml(x, 1, 0.01).cpu().double(), expected, rtol=rtol, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("tau", [1.0, 0.1, 0.01, 1e-3])
@pytest.mark.parametrize(
    ("n", "k"), [(40, 1), (40, 6.5), (40, 34), (1000, 100), (4096, 7), (8192, 5000), (16384, 7), (20000, 700)]
)
def test_steep_rows(n: int, k: float, tau: float, dtype: torch.dtype) -> None:
    """Weights of any size have digits, and derivatives are right where no weight is undecided."""
    x = torch.randn(8, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[0], x[0, n // 2] = 0.0, 0.8
    x[1] += 100 * (x[1] > 0)
    x[2] = (4 * x[2]).round() / 4
    x[3] = (x[3] / x[4]).clamp(-1e3, 1e3)
    g = torch.randn(8, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype)
    answers = []
    for device, kind in (("cuda", dtype), ("cpu", torch.float64)):
        at = {"device": device, "dtype": kind}
        leaves = x.to(dtype).to(**at).requires_grad_(), torch.full((8,), k, **at).requires_grad_()
        y = dcem.lml(*leaves, torch.full((8,), tau, dtype=dtype).to(**at))
        gradients = torch.autograd.grad(y, leaves, g.to(**at))
        answers.append([v.detach().cpu().double() for v in (y, *gradients)])
    (y, gx, gk), (exact, exact_gx, exact_gk) = answers
    rtol, least = (1e-3, 1e-32) if dtype == torch.float32 else (1e-9, 1e-280)
    torch.testing.assert_close(y, exact, rtol=rtol, atol=least)
    steepest = ((exact * (1 - exact)).amax(-1, keepdim=True) / tau).clamp_min(least)
    torch.testing.assert_close(gx / steepest, exact_gx / steepest, rtol=0, atol=rtol)
    torch.testing.assert_close(gk, exact_gk, rtol=0, atol=rtol)


def test_gradients_to_tau_and_k_with_rows_of_each() -> None:
    x = torch.randn(5, 200, dtype=torch.float64)
    tau = torch.rand(5, dtype=torch.float64) + 0.3
    k = torch.rand(5, dtype=torch.float64) * 100 + 1
    g = torch.randn(5, 200, dtype=torch.float64)
    answers = []
    for device in ("cpu", "cuda"):
        leaves = [t.to(device).requires_grad_() for t in (x.clone(), k.clone(), tau.clone())]
        answers.append(torch.autograd.grad(dcem.lml(*leaves), leaves, g.to(device)))
    for cpu, cuda in zip(*answers, strict=True):
        torch.testing.assert_close(cuda.cpu(), cpu, rtol=1e-9, atol=1e-12)


def test_gradcheck_and_second_derivatives() -> None:
    x = torch.randn(2, 6, dtype=torch.float64, device="cuda", requires_grad=True)
    k = torch.tensor([2.0, 2.5], dtype=torch.float64, device="cuda", requires_grad=True)
    tau = torch.tensor([0.7, 1.3], dtype=torch.float64, device="cuda", requires_grad=True)
    assert torch.autograd.gradcheck(dcem.lml, (x, k, tau))
    assert torch.autograd.gradgradcheck(dcem.lml, (x, k, tau))


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("tau", [0.0, 0.3, 1.0])
def test_values_that_are_not_finite(standardize: bool, tau: float) -> None:
    x = torch.randn(6, 50)
    x[0, :10] = math.nan
    x[1, ::2] = math.inf
    x[2, 1:] = -math.inf
    x[3] = math.nan
    expected = finite_topk(x.double(), 10, tau, standardize)
    got = finite_topk(x.cuda(), 10, tau, standardize).cpu().double()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_host_synchronisation() -> None:
    x = torch.randn(16, 1000, device="cuda", requires_grad=True)
    tau = torch.tensor(1.0, device="cuda", requires_grad=True)
    dcem.lml(x, 100, tau).square().sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        dcem.lml(x, 100, tau).square().sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_compiles_whole() -> None:
    x = torch.randn(8, 300, device="cuda", requires_grad=True)
    compiled = torch.compile(lambda x: (dcem.lml(2 * x, 30, 0.5) * x).sum(), fullgraph=True)
    (expected,) = torch.autograd.grad((dcem.lml(2 * x, 30, 0.5) * x).sum(), x)
    (got,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_longer_rows_than_the_kernel_takes() -> None:
    x = torch.randn(3, 20000, device="cuda", requires_grad=True)
    y = dcem.lml(x, 700, 0.5)
    torch.testing.assert_close(
        y.cpu().double(), dcem.lml(x.detach().cpu().double(), 700, 0.5), rtol=1e-4, atol=1e-5
    )
    y.square().sum().backward()

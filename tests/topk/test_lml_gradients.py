"""LML: derivatives, function transforms and compilation."""

import math
import shutil

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jacrev, vmap

from dcem import lml
from dcem.topk.lml import soft_topk

pytestmark = pytest.mark.usefixtures("double")


def leaf(*values: float) -> Tensor:
    return torch.tensor(values, requires_grad=True)


CASES = {
    "one row": (torch.randn(6), torch.tensor(2.3), torch.tensor(0.7)),
    "rows": (torch.randn(2, 5), torch.tensor([1.0, 3.5]), torch.tensor([0.4, 2.0])),
    "broadcast": (torch.randn(2, 2, 4), torch.tensor([2.0, 1.5]), torch.tensor([[1.0], [0.5]])),
    "ties": (torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([2.0]), torch.tensor(1.0)),
    "steep": (torch.randn(2, 5), torch.tensor(2.0), torch.tensor(0.1)),
}


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("case", CASES)
def test_derivatives_with_respect_to_x_k_and_tau(case, check):
    inputs = [v.double().clone().requires_grad_() for v in CASES[case]]
    assert check(lml, inputs)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("shape", [(6,), (2, 5)])
def test_derivatives_with_numbers_for_k_and_tau(shape, check):
    x = torch.randn(shape, requires_grad=True)
    assert check(lambda x: lml(x, 1.5, 0.6, dim=0), (x,))


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("rows", [(), (2,)])
@pytest.mark.parametrize("learned", [False, True])
def test_derivatives_of_standardised_rows(rows, learned, check):
    x = (3 * torch.randn(*rows, 5) + 10).requires_grad_()
    k, tau = leaf(2.2), leaf(0.8)
    if learned:
        assert check(lambda x, k, tau: soft_topk(x, k, tau, True), (x, k, tau))
    else:
        assert check(lambda x: soft_topk(x, 2.2, 0.8, True), (x,))


def test_gradient_matches_the_implicit_formula():
    x, tau = torch.randn(7, requires_grad=True), 0.3
    g = torch.randn(7)
    y = lml(x, 3, tau)
    s = (y * (1 - y) / tau).detach()
    expected = s * (g - (s * g).sum() / s.sum())
    assert torch.allclose(torch.autograd.grad(y, x, g)[0], expected, atol=1e-13)


def test_weights_sum_to_k_so_their_sum_has_no_gradient_in_x_and_one_in_k():
    x, k = torch.randn(3, 6, requires_grad=True), torch.tensor([1.0, 2.5, 4.0], requires_grad=True)
    gx, gk = torch.autograd.grad(lml(x, k).sum(), (x, k))
    assert gx.abs().max() < 1e-12
    assert torch.allclose(gk, torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_gradient_in_lower_precision(dtype):
    x = torch.randn(4, 50)
    g = torch.randn(4, 50)

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        leaves = [v.to(dtype).requires_grad_() for v in (x, torch.tensor(5.0), torch.tensor(0.5))]
        return [v.double() for v in torch.autograd.grad(lml(*leaves), leaves, g.to(dtype))]

    for low, exact in zip(gradients(dtype), gradients(torch.float64), strict=True):
        assert torch.allclose(low, exact, atol=60 * torch.finfo(dtype).eps * exact.abs().max().item())


def test_hard_top_k_passes_no_gradient():
    x = torch.randn(5, requires_grad=True)
    assert not lml(x, 2, 0).requires_grad


def test_a_saturated_row_has_a_zero_gradient():
    x = torch.tensor([[1e6, 0.0, -1e6], [1e6, 0.0, -1e6]], requires_grad=True)
    (gradient,) = torch.autograd.grad(lml(x, 2)[..., 0].sum(), x)
    assert torch.equal(gradient, torch.zeros(2, 3))


def test_only_what_needs_a_gradient_gets_one():
    x, tau = torch.randn(2, 5), torch.tensor(1.0, requires_grad=True)
    y = lml(x, 2, tau)
    (gradient,) = torch.autograd.grad(y[0, 0], tau)
    assert gradient.shape == ()
    assert not lml(x, 2, 1.0).requires_grad


# --------------------------------------------------------------------------- torch.func


def test_vmap_equals_a_loop():
    x, k, tau = torch.randn(4, 6), torch.tensor([1.0, 2.0, 3.0, 4.5]), torch.tensor([0.3, 1.0, 2.0, 0.5])
    loop = torch.stack([lml(*row) for row in zip(x, k, tau, strict=True)])
    assert torch.allclose(vmap(lml)(x, k, tau), loop, atol=1e-12)
    shared = vmap(lambda k: lml(x[0], k))(k)
    assert torch.allclose(shared, torch.stack([lml(x[0], each) for each in k]), atol=1e-12)
    columns = vmap(lambda x: lml(x, 2), in_dims=1, out_dims=1)(x.T)
    assert torch.allclose(columns.T, lml(x, 2), atol=1e-12)
    nested = vmap(vmap(lml, in_dims=(0, None, None)), in_dims=(None, 0, 0))(x, k, tau)
    assert torch.allclose(nested[2], lml(x, 3.0, 2.0), atol=1e-12)


def test_vmap_over_a_row_of_rows_with_dim():
    x = torch.randn(3, 5, 4)
    assert torch.allclose(vmap(lambda x: lml(x, 2, dim=0))(x), lml(x, 2, dim=1), atol=1e-12)


def test_grad_and_jacrev_equal_autograd():
    x = torch.randn(6)
    g = torch.randn(6)
    leaf_x = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(lml(leaf_x, 2, 0.7), leaf_x, g)
    assert torch.allclose(grad(lambda x: (lml(x, 2, 0.7) * g).sum())(x), expected, atol=1e-13)
    jacobian = jacrev(lambda x: lml(x, 2, 0.7))(x)
    assert torch.allclose(g @ jacobian, expected, atol=1e-13)
    assert torch.allclose(jacobian, jacobian.T, atol=1e-13)  # of a projection: symmetric


@pytest.mark.parametrize("argument", [0, 1, 2])
def test_vmap_of_grad_with_respect_to_every_argument(argument):
    inputs = torch.randn(3, 6), torch.tensor([1.0, 2.0, 3.5]), torch.tensor([0.3, 1.0, 2.0])

    def loss(x: Tensor, k: Tensor, tau: Tensor) -> Tensor:
        return lml(x, k, tau).square().sum()

    leaves = [v.clone().requires_grad_() for v in inputs]
    (expected,) = torch.autograd.grad(loss(*leaves), leaves[argument])
    assert torch.allclose(vmap(grad(loss, argument))(*inputs), expected, atol=1e-12)


@pytest.mark.parametrize("argument", [0, 1, 2])
def test_jacrev_of_grad_is_the_second_derivative(argument):
    inputs = torch.randn(5), torch.tensor(2.5), torch.tensor(0.8)

    def loss(x: Tensor, k: Tensor, tau: Tensor) -> Tensor:
        return lml(x, k, tau).square().sum()

    expected = torch.autograd.functional.hessian(loss, inputs)[argument][argument]
    assert torch.allclose(jacrev(grad(loss, argument), argument)(*inputs), expected, atol=1e-11)


# --------------------------------------------------------------------------- torch.compile


def _value_and_gradients(f, x: Tensor, k: Tensor, tau: Tensor) -> list[Tensor]:
    leaves = [v.clone().requires_grad_() for v in (x, k, tau)]
    y = f(*leaves)
    return [y, *torch.autograd.grad(y.square().sum(), leaves, allow_unused=True)]


COMPILED = {
    "tensors": lambda x, k, tau: lml(x, k, tau),
    "numbers": lambda x, k, tau: lml(x, 2, 0.5, dim=0) * k * tau,
    "hard": lambda x, k, tau: lml(x, 2, 0) * x * k * tau,
    "half": lambda x, k, tau: lml(x.half(), k, tau).double(),
}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of Dynamo's making
@pytest.mark.parametrize("case", COMPILED)
def test_compiles_into_one_graph(case):
    inputs = torch.randn(3, 6), torch.tensor([1.0, 2.5, 4.0])[:, None][:, 0], torch.tensor(0.7)
    if case in ("numbers", "hard"):
        inputs = inputs[0], torch.tensor(2.0), inputs[2]
    eager = _value_and_gradients(COMPILED[case], *inputs)
    compiled = _value_and_gradients(
        torch.compile(COMPILED[case], fullgraph=True, backend="aot_eager"), *inputs
    )
    tolerance = 1e-2 if case == "half" else 1e-12
    for a, b in zip(eager, compiled, strict=True):
        assert torch.allclose(a, b, atol=tolerance)


@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("k", [3.0, torch.tensor(2.5)], ids=["number", "tensor"])
def test_inductor_compiles_it_for_every_batch_size_at_once(k):
    """Forward and backward, in one graph without an operator of our own; NaN and infinities included."""
    graphs = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    compiled = torch.compile(lml, fullgraph=True, backend=graphs)
    compilations = []
    for rows in (2, 5, 64):
        for tau in (1.0, 1e-3, 1e-6):
            x = torch.randn(rows, 12)
            x[0, 3], x[1, 4], x[1, 5] = math.nan, math.inf, -math.inf
            answers = []
            for f in (lml, compiled):
                leaves = [x.clone().requires_grad_(), torch.tensor(tau, requires_grad=True)]
                y = f(leaves[0], k, leaves[1])
                answers.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
            for eager, got in zip(*answers, strict=True):
                torch.testing.assert_close(got, eager, rtol=1e-9, atol=1e-12)
        compilations.append(graphs.frame_count)
    assert compilations[1] == compilations[2]  # the second size tells the compiler that it varies
    assert not any("dcem" in str(node.target) for graph in graphs.graphs for node in graph.graph.nodes)

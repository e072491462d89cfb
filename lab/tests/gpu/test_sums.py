"""Gradients of fully connected layers on the tensor cores: exact, captured, the same in every run."""

import pytest
import torch
from torch import Tensor

from toy.networks import far

pytestmark = pytest.mark.gpu
SIZES = [  # members, rows, inputs and outputs, as in training
    (5, 2560, 200, 600),
    (5, 2510, 296, 200),
    (5, 3001, 200, 80),
    (5, 800, 96, 800),
    (5, 2560, 200, 1),
    (1, 5000, 200, 600),
    (1, 2560, 1, 24),
]
NEAR = 1e-5


def inner(M: int, R: int, wide: int, left: int, right: int) -> Tensor:
    """A slice of more and longer rows: whatever else is there is not a number."""
    around = torch.full((M, R + 100, left + wide + right), torch.nan, dtype=torch.float16, device="cuda")
    inside = around[:, 3 : R + 3, left : left + wide]
    inside.copy_(torch.randn(M, R, wide, generator=torch.Generator().manual_seed(wide)))
    return inside


def exact(x: Tensor, grad: Tensor, scale: float) -> list[Tensor]:
    return [scale * (x.double().mT @ grad.double()), scale * grad.double().sum(1)]


@pytest.mark.parametrize("beside", [(0, 96), (8, 8), (3, 2)], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sums_over_rows(sizes: tuple[int, ...], beside: tuple[int, int]) -> None:
    from dcem_lab.suite.rssm.fast.sums_triton import fits, layer_gradients

    M, R, i, o = sizes
    x, grad = inner(M, R, i, *beside), inner(M, R, o, *beside)
    assert fits(x, grad)
    found = layer_gradients(x, grad, 0.3)
    assert far(found, exact(x, grad, 0.3)) < NEAR
    assert all(t.dtype == torch.float32 and t.is_contiguous() for t in found)
    for _ in range(3):
        assert all(map(torch.equal, layer_gradients(x, grad, 0.3), found))


def test_a_captured_call_is_like_another() -> None:
    from dcem_lab.suite.rssm.fast.sums_triton import layer_gradients

    x, grad = inner(5, 2510, 200, 0, 96), inner(5, 2510, 600, 0, 8)
    layer_gradients(x, grad, 0.3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer_gradients(x, grad, 0.3)
    for factor in (1.0, 0.7):
        x.mul_(factor)
        grad.mul_(-factor)
        graph.replay()
        assert all(map(torch.equal, captured, layer_gradients(x, grad, 0.3)))
        assert far(captured, exact(x, grad, 0.3)) < NEAR

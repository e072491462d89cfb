"""The hard top-k."""

import pytest
import torch

from dcem.topk import hard_topk


@pytest.mark.parametrize("shape", [(7,), (4, 7), (2, 3, 7)])
@pytest.mark.parametrize("k", [1, 3, 7])
def test_marks_the_k_largest(shape, k):
    x = torch.randn(shape)
    y = hard_topk(x, k)
    assert y.shape == x.shape
    threshold = x.sort(-1, descending=True).values[..., k - 1 : k]
    assert torch.equal(y, (x >= threshold).float())


def test_a_fraction_goes_to_the_next_entry():
    x = torch.tensor([3.0, 1.0, 2.0, 0.0])
    assert torch.equal(hard_topk(x, 2.25), torch.tensor([1.0, 0.25, 1.0, 0.0]))
    assert torch.equal(hard_topk(x, 0.5), torch.tensor([0.5, 0.0, 0.0, 0.0]))


@pytest.mark.parametrize("k", [1.0, 2.5, 4.0])
def test_a_tensor_k_is_like_a_number(k):
    x = torch.randn(3, 6)
    assert torch.equal(hard_topk(x, torch.full((3, 1), k)), hard_topk(x, k))
    mixed = hard_topk(x, torch.tensor([[1.0], [2.5], [6.0]]))
    assert torch.equal(mixed, torch.stack([hard_topk(x[0], 1), hard_topk(x[1], 2.5), hard_topk(x[2], 6)]))


@pytest.mark.parametrize("k", [2, 2.5, torch.tensor([2.0]), torch.tensor([2.5])])
def test_ties_still_sum_to_k(k):
    assert hard_topk(torch.zeros(5, 6), k).sum(-1).tolist() == [float(k)] * 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_keeps_the_dtype_and_passes_no_gradient(dtype):
    x = torch.randn(5, requires_grad=True).to(dtype)
    for k in (2, 2.5, torch.tensor([2.5])):
        y = hard_topk(x, k)
        assert y.dtype == dtype and not y.requires_grad

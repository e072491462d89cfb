"""Gradient steps."""

import torch

from dcem_lab.training.descent import descend


def test_gradients_are_contiguous_as_the_fused_optimizer_needs_them() -> None:
    parts = [torch.ones(3, 2, requires_grad=True), torch.ones(3, 2, requires_grad=True)]
    loss = torch.cat(parts, dim=-1).square().sum()  # whose gradient both parts get as a view
    assert not torch.autograd.grad(loss, parts, retain_graph=True)[0].is_contiguous()
    descend(loss, parts, torch.optim.Adam(parts, 0.1), clip=1.0)
    assert all(part.grad is not None and part.grad.is_contiguous() for part in parts)

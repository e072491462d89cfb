"""Stacked members against optimisers and schedules of their own."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dcem_lab.training.members import MemberAdam, Plateau


def test_every_member_has_its_own_adam_and_clipping():
    stacked = [nn.Parameter(torch.randn(3, 4, 2)), nn.Parameter(torch.randn(3, 5))]
    alone = [[nn.Parameter(p[m].detach().clone()) for p in stacked] for m in range(3)]
    rates = torch.tensor([1e-3, 1e-2, 0.1])
    ours = MemberAdam(stacked, lr=1.0, clip=1.0)
    ours.lr.copy_(rates)
    theirs = [torch.optim.Adam(own, lr=rate.item()) for own, rate in zip(alone, rates, strict=True)]
    for size in (0.01, 1.0, 100.0, 0.1, 0.0):  # below and above the clipping norm
        gradients = [size * torch.randn_like(p) for p in stacked]
        ours.step(gradients)
        for m in range(3):
            for p, g in zip(alone[m], gradients, strict=True):
                p.grad = g[m].clone()
            nn.utils.clip_grad_norm_(alone[m], 1.0)
            theirs[m].step()
    for m in range(3):
        for p, q in zip(stacked, alone[m], strict=True):
            torch.testing.assert_close(p[m], q)


@given(st.lists(st.lists(st.floats(1e-6, 10), min_size=2, max_size=2), max_size=40), st.integers(1, 4))
def test_every_member_has_its_own_plateau(errors, patience):
    plateau, lr = Plateau(2, patience), torch.ones(2, dtype=torch.float64)
    optimizers = [torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0) for _ in range(2)]
    schedules = [
        torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=patience, eps=0)
        for opt in optimizers
    ]
    for error in torch.tensor(errors):
        lr *= plateau(error)
        for schedule, value in zip(schedules, error, strict=True):
            schedule.step(value.item())
    assert lr.tolist() == [opt.param_groups[0]["lr"] for opt in optimizers]


def test_a_restored_optimiser_goes_on_in_place():
    p = nn.Parameter(torch.randn(2, 3))
    one, two = (MemberAdam([p], 1e-2, 1.0) for _ in range(2))
    one.step([torch.randn(2, 3)])
    first = two.first
    two.load_state_dict(one.state_dict())
    assert two.first is first
    assert torch.equal(two.first, one.first)
    assert two.count == 1

"""The energy network against a plain network on (x, y)."""

import pytest
import torch
from torch import nn

from dcem_lab.regression.energy import EnergyNetwork


def plain(net: EnergyNetwork, member: int) -> nn.Sequential:
    """One member as torch.nn would have it."""
    weight_x, weight_y, *weights = (weight[member] for weight in net.weights)
    layers = []
    for weight, bias in zip([torch.cat([weight_x, weight_y]), *weights], net.biases, strict=True):
        linear = nn.Linear(*weight.shape, dtype=weight.dtype)
        linear.weight.data, linear.bias.data = weight.T, bias[member]
        layers += [linear, nn.Softplus()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("batch", [(), (5,), (2, 5)])
def test_every_member_is_a_plain_network(members, batch):
    shape = batch if members == 1 and batch else (members, *batch)
    net = EnergyNetwork(2, 3, (7, 4), members).double()
    x, y = torch.randn(*shape, 1, 2).double(), torch.randn(*shape, 6, 3).double()
    values = net(x, y)
    assert values.shape == (*shape, 6)
    both = torch.cat([x.expand(*shape, 6, 2), y], dim=-1)
    for m in range(members):
        part = slice(None) if members == 1 else m
        torch.testing.assert_close(values[part], plain(net, m)(both[part]).squeeze(-1))


def test_x_may_differ_between_candidates():
    net = EnergyNetwork(2, 1, (5,)).double()
    x, y = torch.randn(4, 6, 2).double(), torch.randn(4, 6, 1).double()
    torch.testing.assert_close(net(x, y), plain(net, 0)(torch.cat([x, y], -1)).squeeze(-1))


def test_the_default_is_the_papers_network():
    net = EnergyNetwork(1, 1)
    assert sum(p.numel() for p in net.parameters()) == 3 * 128 + 2 * (128 * 128 + 128) + 129


@pytest.mark.usefixtures("double")
def test_first_and_second_derivatives():
    net = EnergyNetwork(1, 2, (4, 3))
    x, y = torch.randn(3, 1, 1, requires_grad=True), torch.randn(3, 2, 2, requires_grad=True)
    assert torch.autograd.gradcheck(net, (x, y))
    assert torch.autograd.gradgradcheck(net, (x, y))


def test_first_weights_fill_their_range():
    for weight, fan_in in zip(EnergyNetwork(1, 1).weights, (2, 2, 128, 128, 128), strict=True):
        assert 0.9 < weight.abs().max() * fan_in**0.5 <= 1

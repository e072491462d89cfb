"""Ensemble networks against torch.nn, and the observation normaliser."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dcem_lab.suite.rssm.nets import ACTIVATIONS, BACKWARD, EnsembleGRU, EnsembleMLP
from dcem_lab.suite.rssm.normalize import MIN_STD, Normalizer

MODULES = {"relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_member_is_a_plain_mlp(activation):
    net = EnsembleMLP([3, 5, 4, 2], activation, members=2).double()
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    for m in range(2):
        layers = []
        for weight, bias in zip(net.weights, net.biases, strict=True):
            linear = nn.Linear(*weight.shape[1:], dtype=torch.float64)
            linear.weight.data, linear.bias.data = weight[m].T, bias[m]
            layers += [linear, MODULES[activation]()]
        torch.testing.assert_close(net(x)[m], nn.Sequential(*layers[:-1])(x[m]))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_written_derivatives_of_activations_are_autograds(activation):
    x = torch.randn(50, dtype=torch.float64, requires_grad=True)
    grad = torch.randn_like(x)
    (expected,) = torch.autograd.grad(ACTIVATIONS[activation](x), x, grad)
    torch.testing.assert_close(BACKWARD[activation](grad, x.detach(), torch.empty_like(x)), expected)


def test_every_member_is_torchs_gru_cell():
    H = 4
    gru = EnsembleGRU(inputs=3, hidden=H, members=2).double()
    inputs, hidden = torch.randn(2, 6, 3).double(), torch.randn(2, 6, H).double()
    for m in range(2):
        cell = nn.GRUCell(3, H, dtype=torch.float64)
        new_h, reset, update = gru.hidden_weight[m].T.split(H)
        b_new_h, b_reset, b_update, b_new_i = gru.bias[m].split(H)
        cell.weight_hh.data = torch.cat([reset, update, new_h])
        cell.weight_ih.data = gru.input_weight[m].T
        cell.bias_hh.data = torch.cat([b_reset, b_update, b_new_h])
        cell.bias_ih.data = torch.cat([torch.zeros(2 * H).double(), b_new_i])
        torch.testing.assert_close(gru(inputs, hidden)[m], cell(inputs[m], hidden[m]))


def test_members_start_apart_and_a_generator_decides_them():
    nets = [EnsembleMLP([3, 2], "relu", 2, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    first, again, other = (net.weights[0] for net in nets)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])


def test_unknown_activation_is_named():
    with pytest.raises(ValueError, match=r"activation must be one of .*'gelu'.*, got 'tanh'"):
        EnsembleMLP([1, 1], "tanh")


@given(
    angles=st.lists(st.integers(0, 4), max_size=3, unique=True),
    batch=st.sampled_from([(), (2,), (2, 3)]),
    scale=st.booleans(),
    seed=st.integers(0, 100),
)
@settings(max_examples=30, deadline=None)
def test_normalisation_round_trip(angles, batch, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    normalizer = Normalizer(5, angles, scale).double()
    normalizer.update(3 + 2 * torch.randn(40, 5, generator=generator, dtype=torch.float64))
    obs = (torch.rand(*batch, 5, generator=generator, dtype=torch.float64) * 2 - 1) * (math.pi - 1e-3)
    features = normalizer.encode(obs)
    assert features.shape == (*batch, 5 + len(angles))
    torch.testing.assert_close(normalizer.decode(features), obs)


def test_features_have_zero_mean_and_unit_variance_and_whole_turns_vanish():
    data = 3 + 2 * torch.randn(500, 4, dtype=torch.float64)
    normalizer = Normalizer(4, [2]).double()
    normalizer.update(data)
    features = normalizer.encode(data)
    torch.testing.assert_close(features.mean(0), torch.zeros(5).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(features.var(0, correction=0), torch.ones(5).double())
    turned = data + 2 * math.pi * torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(normalizer.encode(turned), features)


def test_running_statistics_are_those_of_all_data():
    data = torch.randn(3, 7, 4, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.3, 2.0])
    whole, running = Normalizer(4, [0]).double(), Normalizer(4, [0]).double()
    whole.update(data)
    for batch in data:
        running.update(batch)
    torch.testing.assert_close(running.state_dict(), whole.state_dict())


def test_a_constant_feature_stays_finite_and_no_scale_learns_nothing():
    normalizer = Normalizer(2)
    normalizer.update(torch.ones(10, 2))
    torch.testing.assert_close(normalizer.std, torch.full((2,), MIN_STD))
    identity = Normalizer(2, scale=False)
    identity.update(torch.randn(10, 2))
    obs = torch.randn(3, 2)
    assert torch.equal(identity.encode(obs), obs)


def test_normalizer_errors():
    with pytest.raises(ValueError, match=r"angles must be distinct indices below 3, got \(3,\)"):
        Normalizer(3, [3])
    with pytest.raises(ValueError, match=r"obs must end in 3 numbers, got shape \(2, 4\)"):
        Normalizer(3).encode(torch.zeros(2, 4))

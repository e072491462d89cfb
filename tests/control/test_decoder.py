"""The decoder: shapes, the box, the paper's first weights, and what it says when misused."""

import math

import pytest
import torch
from torch import nn

from dcem import Decoder


def test_any_leading_dimensions_within_the_box():
    low, high = [-1.0, -5.0], [1.0, 0.5]
    decoder = Decoder(4, 7, 2, low, high, hidden=(16,))
    actions = decoder(100 * torch.randn(2, 3, 4))
    assert actions.shape == (2, 3, 7, 2)
    assert (actions >= torch.tensor(low)).all() and (actions <= torch.tensor(high)).all()
    torch.testing.assert_close(decoder(torch.zeros(4)), decoder(torch.zeros(1, 4))[0])


def test_zero_decodes_to_the_middle_at_first():
    decoder = Decoder(4, 7, 1, -2.0, 6.0)
    torch.testing.assert_close(decoder(torch.zeros(4)), torch.full((7, 1), 2.0))


def test_first_weights_are_the_papers():
    torch.manual_seed(0)
    layers = [layer for layer in Decoder(16, 20, 1).net if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in layers] == [256, 256, 256, 20]
    for layer in layers:
        expected = 2 / math.sqrt(layer.in_features + layer.out_features)
        assert layer.weight.std().item() == pytest.approx(expected, rel=0.05)
        assert not layer.bias.any()


def test_settings_and_weights_are_the_decoder():
    decoder = Decoder(3, 5, 2, [-1.0, -2.0], [1.0, 2.0], hidden=(8, 8), activation="gelu")
    again = Decoder(**decoder.settings)
    again.load_state_dict(decoder.state_dict())
    z = torch.randn(6, 3)
    assert torch.equal(again(z), decoder(z))


def test_a_state_broadcasts_over_the_candidates():
    decoder = Decoder(2, 5, 1, state_dim=3)
    z, state = torch.randn(4, 6, 2), torch.randn(4, 1, 3)
    together = decoder(z, state)
    torch.testing.assert_close(together[1, 2], decoder(z[1, 2], state[1, 0]))
    assert not torch.allclose(together, decoder(z, state + 1))


def test_misuse_is_named():
    with pytest.raises(ValueError, match=r"activation must be one of \['elu', 'gelu', 'relu'\], got 'tanh'"):
        Decoder(2, 5, 1, activation="tanh")
    with pytest.raises(ValueError, match="conditioned on the state, which is missing"):
        Decoder(2, 5, 1, state_dim=3)(torch.zeros(2))

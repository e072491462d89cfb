"""Many decoders trained in parallel: one batched product instead of many small ones."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dcem import Decoder
from dcem.control.decoder import ACTIVATIONS


class DecoderStack(nn.Module):
    """S decoders that share all but their weights and latent dimension; `MPC` takes it like one decoder.

    Row s of z goes through decoder s, and so does row s of the state if decoders are conditioned on it. If a
    decoder's latent space is smaller than the largest, it ignores the remaining numbers, and they get no
    gradient.

    >>> stack = DecoderStack([Decoder(d, horizon=20, action_dim=1) for d in (2, 8)])
    >>> stack(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 20, 1])
    """

    used: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        super().__init__()
        first = decoders[0]
        self.settings = [d.settings for d in decoders]
        self.latent_dim = max(d.latent_dim for d in decoders)
        self.horizon, self.action_dim, self.state_dim = first.horizon, first.action_dim, first.state_dim
        self.activation = ACTIVATIONS[first.activation]()
        self.register_buffer("low", first.low.clone())
        self.register_buffer("high", first.high.clone())
        dims = torch.tensor([d.latent_dim for d in decoders])
        used = torch.arange(self.latent_dim) < dims.unsqueeze(-1)
        used = nn.functional.pad(used.to(first.low.dtype), (0, self.state_dim), value=1)
        self.register_buffer("used", used.unsqueeze(-1), persistent=False)
        layers = [[layer for layer in d.net if isinstance(layer, nn.Linear)] for d in decoders]
        weights = [[layer.weight.detach().mT for layer in row] for row in layers]
        for d, row in zip(decoders, weights, strict=True):
            row[0] = _padded(row[0], d.latent_dim, self.latent_dim)
        self.weights = nn.ParameterList(map(torch.stack, zip(*weights, strict=True)))  # (S, in, out) each
        self.biases = nn.ParameterList(  # (S, 1, out) each
            torch.stack([layer.bias.detach().unsqueeze(0) for layer in row])
            for row in zip(*layers, strict=True)
        )

    def forward(self, z: Tensor, state: Tensor | None = None) -> Tensor:
        """z (S, ..., d) -> actions (S, ..., H, m); with states (S, ..., s) if conditioned on them."""
        if self.state_dim:
            assert state is not None
            z = torch.cat([z, state.expand(*z.shape[:-1], self.state_dim)], dim=-1)
        first, *others = self.weights
        y = torch.baddbmm(self.biases[0], z.flatten(1, -2), first * self.used)
        for weight, bias in zip(others, self.biases[1:], strict=True):
            y = torch.baddbmm(bias, self.activation(y), weight)
        u = y.unflatten(-1, (self.horizon, self.action_dim)).unflatten(1, z.shape[1:-1])
        return self.low + (self.high - self.low) * torch.sigmoid(u)

    def decoder(self, s: int) -> Decoder:
        """A copy of decoder s, on its own."""
        decoder = Decoder(**self.settings[s])
        linears = [layer for layer in decoder.net if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            first, *others = (weight[s] for weight in self.weights)
            first = first[self.used[s, :, 0] > 0]
            for linear, weight, bias in zip(linears, [first, *others], self.biases, strict=True):
                linear.weight.copy_(weight.mT)
                linear.bias.copy_(bias[s, 0])
        return decoder


def _padded(weight: Tensor, used: int, rows: int) -> Tensor:
    """The first `used` rows of a weight (in, out), padded with zeros to `rows` rows."""
    return torch.cat([weight[:used], weight.new_zeros(rows - used, weight.shape[1]), weight[used:]])

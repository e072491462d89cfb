"""From a small latent space to whole action sequences."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

ACTIVATIONS = {"elu": nn.ELU, "relu": nn.ReLU, "gelu": nn.GELU}


class Decoder(nn.Module):
    """u_{1:H} = f_dec(z): a network whose outputs are squashed into the action box.

    Args:
        latent_dim: size of z.
        horizon: H, actions per sequence.
        action_dim: m, dimension of an action.
        low, high: bounds of the actions; numbers, or m of them.
        hidden: widths of the hidden layers.
        activation: 'elu', 'relu' or 'gelu'.
        state_dim: dimension of the state to condition on; 0, as in the paper, for a decoder of z alone.

    `settings` holds these arguments as JSON values: `Decoder(**settings)` and its state dict are the decoder.

    >>> Decoder(latent_dim=2, horizon=20, action_dim=1, low=-100.0, high=100.0)(torch.zeros(5, 2)).shape
    torch.Size([5, 20, 1])
    """

    low: Tensor
    high: Tensor

    def __init__(
        self,
        latent_dim: int,
        horizon: int,
        action_dim: int,
        low: float | Sequence[float] | Tensor = -1.0,
        high: float | Sequence[float] | Tensor = 1.0,
        hidden: Sequence[int] = (256, 256, 256),
        activation: str = "elu",
        state_dim: int = 0,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"Decoder: activation must be one of {sorted(ACTIVATIONS)}, got {activation!r}")
        self.latent_dim, self.horizon, self.action_dim = latent_dim, horizon, action_dim
        self.activation, self.state_dim = activation, state_dim
        for name, bound in (("low", low), ("high", high)):
            self.register_buffer(name, torch.as_tensor(bound, dtype=torch.get_default_dtype()).clone())
        self.settings: dict[str, Any] = {
            "latent_dim": latent_dim, "horizon": horizon, "action_dim": action_dim,
            "low": self.low.tolist(), "high": self.high.tolist(),
            "hidden": list(hidden), "activation": activation, "state_dim": state_dim,
        }  # fmt: skip
        sizes = [latent_dim + state_dim, *hidden, horizon * action_dim]
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            linear = nn.Linear(fan_in, fan_out)
            nn.init.normal_(linear.weight, std=2 / math.sqrt(fan_in + fan_out))
            nn.init.zeros_(linear.bias)
            layers += [linear, ACTIVATIONS[activation]()]
        self.net = nn.Sequential(*layers[:-1])

    def forward(self, z: Tensor, state: Tensor | None = None) -> Tensor:
        """z (..., d) -> actions (..., H, m). A decoder conditioned on the state takes that too, (..., s)."""
        if self.state_dim:
            if state is None:
                raise ValueError("Decoder: this decoder is conditioned on the state, which is missing")
            z = torch.cat([z, state.expand(*z.shape[:-1], self.state_dim)], dim=-1)
        u = self.net(z).unflatten(-1, (self.horizon, self.action_dim))
        return self.low + (self.high - self.low) * torch.sigmoid(u)

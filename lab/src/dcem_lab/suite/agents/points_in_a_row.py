"""Longer plans with the same decoder: several latent points, decoded one after the other."""

from typing import Any

from torch import Tensor, nn

from dcem import Decoder


class PointsInARow(nn.Module):
    """u_{1:KH} = f_dec(z_1), …, f_dec(z_K): a decoder of K · H actions, with the weights of one of H.

    Args:
        decoder: of z alone; a plan's later states, or a policy's plan there, are not known.
        points: K.

    >>> import torch
    >>> plan = PointsInARow(Decoder(latent_dim=2, horizon=4, action_dim=1), points=3)
    >>> plan(torch.zeros(5, 6)).shape
    torch.Size([5, 12, 1])
    """

    def __init__(self, decoder: Decoder, points: int) -> None:
        super().__init__()
        if decoder.state_dim or decoder.settings.get("residual"):
            raise ValueError(f"latent_points must be 1 unless the decoder is one of z alone, got {points}")
        self.decoder, self.points = decoder, points
        self.latent_dim, self.horizon = points * decoder.latent_dim, points * decoder.horizon
        self.action_dim, self.state_dim = decoder.action_dim, 0
        self.low, self.high = decoder.low, decoder.high

    def forward(self, z: Tensor, state: Any = None) -> Tensor:
        """z (..., K · d) -> actions (..., K · H, m)."""
        return self.decoder(z.unflatten(-1, (self.points, -1))).flatten(-3, -2)

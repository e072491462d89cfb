"""A latent space of corrections: it decodes to a modified plan of a policy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dcem import Decoder

EDGE = 0.98
"""A policy's actions are scaled by it, so that the inverse of the tanh stays finite."""


class ResidualDecoder(Decoder):
    """u_{1:H} = tanh(atanh(0.98 · policy's plan) + net(z)), in the box [−1, 1].

    It decodes in a `Situation`, which holds the policy's plan. Args are those of `dcem.Decoder`, except the
    box.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.settings["residual"] = True

    def forward(self, z: Tensor, situation: Any = None) -> Tensor:
        """z (..., d) and a situation with plans (..., P, H, m) -> actions (..., H, m)."""
        if situation is None:
            raise ValueError("ResidualDecoder: situation must be given: it holds the plan to correct")
        if self.state_dim:
            z = torch.cat([z, situation.state.expand(*z.shape[:-1], self.state_dim)], dim=-1)
        correction = self.net(z).unflatten(-1, (self.horizon, self.action_dim))
        return torch.tanh((EDGE * situation.plans[..., 0, :, :]).atanh() + correction)


def stored_decoder(settings: dict[str, Any]) -> Decoder:
    """The decoder, of either kind, that these `settings` describe."""
    plain = {name: value for name, value in settings.items() if name != "residual"}
    return ResidualDecoder(**plain) if settings.get("residual") else Decoder(**plain)

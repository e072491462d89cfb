"""Action sequences by a few knots in time, in place of one action a step."""

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Knots:
    """K actions, evenly spread from the first to the last of H steps; those between are interpolated.

    The search is over K · m numbers in place of H · m, and its sequences are smooth.

    Args:
        count: K, at least 2.
        kind: 'linear', or 'cubic': Hermite pieces with the slopes of Catmull and Rom, which are smoother,
            and clamped where they leave the action box.

    >>> Knots(2).actions(torch.tensor([[0.0], [1.0]]), horizon=5).squeeze(-1)
    tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
    """

    count: int
    kind: Literal["linear", "cubic"] = "linear"

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or self.count < 2:
            raise ValueError(f"Knots: count must be an integer of at least 2, got {self.count!r}")
        if self.kind not in ("linear", "cubic"):
            raise ValueError(f"Knots: kind must be 'linear' or 'cubic', got {self.kind!r}")

    def actions(self, knots: Tensor, horizon: int) -> Tensor:
        """Actions (..., H, m) for knots (..., K, m)."""
        return self._at_steps(horizon, knots) @ knots

    def fit(self, actions: Tensor) -> Tensor:
        """The knots (..., K, m) whose actions come closest to those given, (..., H, m), in least squares."""
        return _inverse(self, actions.shape[-2], actions.device, actions.dtype) @ actions

    def later(self, knots: Tensor, horizon: int) -> Tensor:
        """The knots (..., K, m) of the same actions one step later, the last held."""
        return _weights(self, horizon, 1, knots.device, knots.dtype) @ knots

    def _at_steps(self, horizon: int, like: Tensor) -> Tensor:
        return _weights(self, horizon, 0, like.device, like.dtype)


@functools.lru_cache(maxsize=64)
def _weights(knots: Knots, horizon: int, delay: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """What each knot adds to the action of each step, (H, K); so long after the knots' own times, (K, K)."""
    count = knots.count
    last = max(horizon - 1, 1)
    times = torch.linspace(0, last, count, dtype=torch.float64) if delay else torch.arange(horizon).double()
    place = (times + delay).clamp(max=last) * (count - 1) / last
    left = place.floor().long().clamp(max=count - 2)
    s = (place - left).unsqueeze(-1)
    values = torch.eye(count, dtype=torch.float64)
    if knots.kind == "linear":
        weights = torch.lerp(values[left], values[left + 1], s)
    else:
        slopes = torch.cat(
            [values[1:2] - values[:1], (values[2:] - values[:-2]) / 2, values[-1:] - values[-2:-1]]
        )
        rise = s.square() * (3 - 2 * s)
        weights = torch.lerp(values[left], values[left + 1], rise) + s * (1 - s) * torch.lerp(
            slopes[left], -slopes[left + 1], s
        )
    return weights.to(device, dtype)


@functools.lru_cache(maxsize=64)
def _inverse(knots: Knots, horizon: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    weights = _weights(knots, horizon, 0, torch.device("cpu"), torch.float64)
    return torch.linalg.pinv(weights).to(device, dtype)

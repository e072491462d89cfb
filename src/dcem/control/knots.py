"""Action sequences by a few knots in time, in place of one action per step."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Knots:
    """K actions, evenly spaced over H steps, with interpolation between them.

    The search is over K · m numbers instead of H · m, and its sequences are smooth.

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
        return self.weights(horizon).to(knots) @ knots

    def weights(self, horizon: int) -> Tensor:
        """What each knot adds to the action of each step, (H, K)."""
        return self._at(torch.arange(horizon, dtype=torch.float64), horizon)

    def inverse(self, horizon: int) -> Tensor:
        """(K, H): from actions to the knots that come closest to them, in least squares."""
        return torch.linalg.pinv(self.weights(horizon))

    def later(self, horizon: int) -> Tensor:
        """(K, K): from knots to those of the same actions one step later, the last held."""
        times = torch.linspace(0, horizon - 1, self.count, dtype=torch.float64)
        return self._at((times + 1).clamp(max=horizon - 1), horizon)

    def _at(self, times: Tensor, horizon: int) -> Tensor:
        """What each knot adds at each of some times, (times, K)."""
        place = times * ((self.count - 1) / (horizon - 1))
        left = place.floor().long().clamp(max=self.count - 2)
        s = (place - left).unsqueeze(-1)
        values = torch.eye(self.count, dtype=torch.float64)
        if self.kind == "linear":
            return torch.lerp(values[left], values[left + 1], s)
        ends = values[1:2] - values[:1], values[-1:] - values[-2:-1]
        slopes = torch.cat([ends[0], (values[2:] - values[:-2]) / 2, ends[1]])
        bend = torch.lerp(slopes[left], -slopes[left + 1], s)
        return torch.lerp(values[left], values[left + 1], s.square() * (3 - 2 * s)) + s * (1 - s) * bend

"""Box bounds on the samples, and three ways to keep them."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Boundary = Literal["clamp", "truncate", "squash"]
Bounds = tuple[float | Tensor, float | Tensor]


@dataclass(frozen=True)
class Box:
    """low <= x <= high, each a number or a tensor per dimension.

    clamp     samples outside move to the nearest face, as in the paper. Exact and cheap, and an optimum on
              the boundary is found; but samples on a face pass no gradient.
    truncate  samples are drawn from the normal distribution truncated to the box: every sample is inside and
              passes gradients.
    squash    the distribution lives in an unbounded space, mapped into the box by a tanh with slope one at
              the centre: gradients never vanish, and it works for correlated distributions too.
    """

    low: float | Tensor
    high: float | Tensor
    boundary: Boundary = "clamp"

    @staticmethod
    def of(bounds: Bounds | None, boundary: Boundary, name: str) -> "Box | None":
        if boundary not in ("clamp", "truncate", "squash"):
            raise ValueError(f"{name}: boundary must be 'clamp', 'truncate' or 'squash', got {boundary!r}")
        if bounds is None:
            return None
        if not isinstance(bounds, tuple | list) or len(bounds) != 2:
            raise ValueError(f"{name}: bounds must be a pair (low, high), got {bounds!r}")
        low, high = bounds
        if any(isinstance(b, Tensor) and b.device.type != "cpu" for b in bounds):
            return Box(low, high, boundary)  # values are not looked at there, to not stall the device
        if not (torch.as_tensor(low) < torch.as_tensor(high)).all():
            raise ValueError(f"{name}: bounds must satisfy low < high everywhere, got low={low}, high={high}")
        if boundary == "squash" and not all(torch.as_tensor(bound).isfinite().all() for bound in bounds):
            raise ValueError(f"{name}: bounds must be finite for 'squash', got low={low}, high={high}")
        return Box(low, high, boundary)

    def contains(self, x: Tensor) -> Tensor:
        """For every row of x (..., n): is it inside?"""
        return ((x >= self.low) & (x <= self.high)).all(-1)

    def clamp(self, x: Tensor) -> Tensor:
        low, high = self.low, self.high
        if isinstance(low, Tensor) or isinstance(high, Tensor):
            return x.clamp(_like(low, x), _like(high, x))
        return x.clamp(low, high)

    def hold(self, x: Tensor) -> Tensor:
        """x, moved inside where rounding put it outside (as a mean of points on a face may be).

        Gradients pass as if nothing had moved.
        """
        return x + (self.clamp(x) - x).detach()

    def squash(self, u: Tensor) -> Tensor:
        centre, half = self._centre_and_half(u)
        return self.hold(centre + half * torch.tanh((u - centre) / half))

    def unsquash(self, x: Tensor) -> Tensor:
        centre, half = self._centre_and_half(x)
        inside = 1 - 1e-6  # a point on a face would be infinitely far away
        return centre + half * torch.atanh(((x - centre) / half).clamp(-inside, inside))

    def truncated_normal(self, mean: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
        """Standard normal noise → samples of N(mean, sigma²) truncated to the box, by inverting its CDF."""
        low = torch.special.ndtr((_like(self.low, mean) - mean) / sigma)
        high = torch.special.ndtr((_like(self.high, mean) - mean) / sigma)
        edge = torch.finfo(mean.dtype).eps
        u = low + torch.special.ndtr(noise) * (high - low)
        standard = math.sqrt(2) * torch.erfinv((2 * u - 1).clamp(-1 + edge, 1 - edge))
        return self.clamp(mean + sigma * standard)

    def _centre_and_half(self, x: Tensor) -> tuple[float | Tensor, float | Tensor]:
        low, high = self.low, self.high
        if isinstance(low, Tensor) or isinstance(high, Tensor):
            low, high = _like(low, x), _like(high, x)
        return (low + high) / 2, (high - low) / 2


def first_mean(box: Box | None, x0: Tensor, name: str) -> Tensor:
    """The first mean for x0 (*B, n), in the coordinates where the samples live."""
    if box is None:
        return x0
    for bound in (box.low, box.high):
        if isinstance(bound, Tensor) and bound.shape not in ((), (1,), x0.shape[-1:]):
            raise ValueError(
                f"{name}: bounds must be numbers or tensors of shape {tuple(x0.shape[-1:])}, one value a "
                f"dimension of x0, got shape {tuple(bound.shape)}"
            )
    return box.unsquash(x0) if box.boundary == "squash" else x0


def _like(value: float | Tensor, x: Tensor) -> Tensor:
    return value.to(x) if isinstance(value, Tensor) else x.new_full((), value)

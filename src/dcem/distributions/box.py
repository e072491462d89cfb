"""Box bounds on the samples, and three ways to enforce them."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from dcem._checks import Settings

Boundary = Literal["clamp", "truncate", "squash"]
Bound = Any  # a number, a tensor, or an array or sequence for `torch.as_tensor`
Bounds = tuple[Bound, Bound]

_UNIFORM = 1000.0  # a normal this many times wider than its box is uniform there, up to float32 rounding


@dataclass(frozen=True, eq=False)
class Box(Settings):
    """low <= x <= high, each a number or a tensor per dimension; infinite where there is no bound.

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
        low, high = map(as_bound, bounds)
        if any(isinstance(b, Tensor) and b.device.type != "cpu" for b in (low, high)):
            return Box(low, high, boundary)  # reading values there would synchronise with the device
        if not (torch.as_tensor(low) < torch.as_tensor(high)).all():
            raise ValueError(f"{name}: bounds must satisfy low < high everywhere, got low={low}, high={high}")
        if boundary == "squash" and not all(torch.as_tensor(b).isfinite().all() for b in (low, high)):
            raise ValueError(f"{name}: bounds must be finite for 'squash', got low={low}, high={high}")
        return Box(low, high, boundary)

    def tiled(self, steps: int) -> "Box":
        """The box of ``steps`` points in a row, each of them inside this one."""
        parts = [b.repeat(steps) if isinstance(b, Tensor) and b.ndim else b for b in (self.low, self.high)]
        return replace(self, low=parts[0], high=parts[1])

    def contains(self, x: Tensor) -> Tensor:
        """For every row of x (..., n): is it inside?"""
        return ((x >= self.low) & (x <= self.high)).all(-1)

    def pinned(self, x: Tensor, slope: Tensor) -> Tensor:
        """Which coordinates of x (..., n) are on a bound, or almost, and pushed against it by f's slope."""
        slack = math.sqrt(torch.finfo(x.dtype).eps) * self.half_width(x)
        return ((x <= self.low + slack) & (slope > 0)) | ((x >= self.high - slack) & (slope < 0))

    def clamp(self, x: Tensor) -> Tensor:
        low, high = self.low, self.high
        if isinstance(low, Tensor) or isinstance(high, Tensor):
            return x.clamp(_like(low, x), _like(high, x))
        return x.clamp(low, high)

    def hold(self, x: Tensor) -> Tensor:
        """x, moved inside where rounding put it outside (such as a mean of points on a face).

        Gradients pass unchanged.
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
        low, high = _like(self.low, mean), _like(self.high, mean)
        # Further out, the CDF is equal at both bounds up to rounding, and all samples would be one point.
        sigma = torch.minimum(sigma, _UNIFORM * (high - low))
        below, above = torch.special.ndtr((low - mean) / sigma), torch.special.ndtr((high - mean) / sigma)
        edge = torch.finfo(mean.dtype).eps
        u = below + torch.special.ndtr(noise) * (above - below)
        standard = math.sqrt(2) * torch.erfinv((2 * u - 1).clamp(-1 + edge, 1 - edge))
        return self.clamp(mean + sigma * standard)

    def half_width(self, x: Tensor) -> Tensor:
        """Half of the extent in every dimension of x (..., n), shaped as x; 1 where it is infinite."""
        half = _like(self.high, x) / 2 - _like(self.low, x) / 2
        return torch.where(half.isfinite(), half, 1.0).expand_as(x)

    def _centre_and_half(self, x: Tensor) -> tuple[float | Tensor, float | Tensor]:
        low, high = self.low, self.high
        if isinstance(low, Tensor) or isinstance(high, Tensor):
            low, high = _like(low, x), _like(high, x)
        return (low + high) / 2, (high - low) / 2


def as_bound(value: Bound) -> float | Tensor:
    """A number or a tensor unchanged; an array or a sequence as a tensor of the default dtype."""
    if isinstance(value, Tensor | float | int):
        return value
    tensor = torch.as_tensor(value)
    return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())


def merged(own: Box | None, asked: Box, boundary: Boundary, name: str) -> Box:
    """The requested box, enforced as `boundary` says; ValueError if `own` is a different one."""
    if own is not None:
        for mine, theirs in ((own.low, asked.low), (own.high, asked.high)):
            if not bool((torch.as_tensor(mine) == torch.as_tensor(theirs)).all()):
                raise ValueError(
                    f"{name}: bounds must be left out or agree with ({asked.low}, {asked.high}), "
                    f"got ({own.low}, {own.high})"
                )
    return replace(asked, boundary=boundary)


def first_mean(box: Box | None, x0: Tensor, name: str) -> Tensor:
    """The first mean for x0 (*B, n), in the coordinates where the samples live."""
    if box is None:
        return x0
    for bound in (box.low, box.high):
        if isinstance(bound, Tensor) and bound.shape not in ((), (1,), x0.shape[-1:]):
            raise ValueError(
                f"{name}: bounds must be numbers or tensors of shape {tuple(x0.shape[-1:])}, one value per "
                f"dimension of x0, got shape {tuple(bound.shape)}"
            )
    return box.unsquash(x0) if box.boundary == "squash" else x0


def _like(value: float | Tensor, x: Tensor) -> Tensor:
    return value.to(x) if isinstance(value, Tensor) else x.new_full((), value)

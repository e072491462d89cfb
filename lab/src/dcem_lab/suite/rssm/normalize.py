"""Normalisation of observations and rewards.

Angles become sine and cosine, features have zero mean and unit variance, rewards a mean square of one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

MIN_STD = 1e-2
"""Minimum standard deviation, so that a feature that hardly changes is not amplified."""


class Normalizer(nn.Module):
    """Observation ↔ features: f = ((x with sin in the angles' places, cos of the angles) − mean) / std.

    The statistics are buffers, learned as data comes in (`update`); with ``scale=False`` they stay 0 and 1.
    Angles come back in (−π, π].

    Args:
        size: numbers in an observation.
        angles: which of them are angles in radians.
        scale: whether to normalise at all.

    >>> normalizer = Normalizer(3, angles=[1])
    >>> normalizer.update(torch.randn(100, 3))
    >>> normalizer.encode(torch.zeros(2, 3)).shape
    torch.Size([2, 4])
    """

    mean: Tensor
    std: Tensor
    count: Tensor

    def __init__(self, size: int, angles: Sequence[int] = (), scale: bool = True) -> None:
        super().__init__()
        if len(set(angles)) != len(angles) or any(not 0 <= i < size for i in angles):
            raise ValueError(f"angles must be distinct indices below {size}, got {tuple(angles)}")
        self.size, self.angles, self.scale = size, tuple(angles), scale
        self.features = size + len(angles)
        self.register_buffer("mean", torch.zeros(self.features))
        self.register_buffer("std", torch.ones(self.features))
        self.register_buffer("count", torch.zeros(()))

    def encode(self, obs: Tensor) -> Tensor:
        """(..., size) → (..., features)."""
        features = self._unwrap(obs)
        return (features - self.mean) / self.std if self.scale else features

    def decode(self, features: Tensor) -> Tensor:
        """(..., features) → (..., size), the inverse of `encode` up to whole turns."""
        if self.scale:
            features = features * self.std + self.mean
        columns = list(features[..., : self.size].unbind(-1))
        for cosine, i in enumerate(self.angles, start=self.size):
            columns[i] = torch.atan2(columns[i], features[..., cosine])
        return torch.stack(columns, dim=-1)

    @torch.no_grad()
    def update(self, obs: Tensor) -> None:
        """Merges a batch (..., size) into the running statistics (pairwise update of mean and variance)."""
        if not self.scale:
            return
        features = self._unwrap(obs).flatten(0, -2)
        variance, mean = torch.var_mean(features, dim=0, correction=0)
        new = len(features) / (self.count + len(features))
        shift = mean - self.mean
        variance = torch.lerp(self.std.square(), variance, new) + shift.square() * new * (1 - new)
        self.std.copy_(variance.sqrt().clamp(min=MIN_STD))
        self.mean.add_(shift * new)
        self.count.add_(len(features))

    def _unwrap(self, obs: Tensor) -> Tensor:
        if obs.shape[-1] != self.size:
            raise ValueError(f"obs must end in {self.size} numbers, got shape {tuple(obs.shape)}")
        if not self.angles:
            return obs
        columns = list(obs.unbind(-1))
        cosines = [columns[i].cos() for i in self.angles]
        for i in self.angles:
            columns[i] = columns[i].sin()
        return torch.stack(columns + cosines, dim=-1)


class RewardScale(nn.Module):
    """Rewards ↔ rewards in units of their root mean square, learned as data comes in.

    Zero stays zero, since nothing is earned after an episode's end. With ``scale=False`` there are no
    statistics and rewards stay as they are.

    >>> scale = RewardScale()
    >>> scale.update(torch.tensor([3e3, -4e3, 0.0, 0.0]))
    >>> scale.encode(torch.tensor([5e3]))
    tensor([2.])
    """

    mean_square: Tensor
    count: Tensor

    def __init__(self, scale: bool = True) -> None:
        super().__init__()
        self.scale = scale
        if scale:
            self.register_buffer("mean_square", torch.zeros(()))
            self.register_buffer("count", torch.zeros(()))

    @property
    def unit(self) -> Tensor:
        """() The root mean square, or one if there was no reward yet."""
        return torch.where(self.mean_square > 0, self.mean_square, 1).sqrt()

    def encode(self, rewards: Tensor) -> Tensor:
        """In units of the root mean square."""
        return rewards / self.unit if self.scale else rewards

    def decode(self, rewards: Tensor) -> Tensor:
        """The inverse of `encode`, in at least the statistics' precision: half precision would overflow."""
        if not self.scale:
            return rewards
        return rewards.to(torch.promote_types(rewards.dtype, self.mean_square.dtype)) * self.unit

    @torch.no_grad()
    def update(self, rewards: Tensor) -> None:
        """Merges a batch of rewards of any shape into the running statistics."""
        if self.scale:
            self.count.add_(rewards.numel())
            self.mean_square.lerp_(rewards.square().mean(), rewards.numel() / self.count)

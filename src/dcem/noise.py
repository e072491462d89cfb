"""Where samples come from: standard normal noise, drawn before an iteration starts."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor


class Noise(Protocol):
    """Draws standard normal noise of a shape (*B, N, n), with the dtype and device of `like`."""

    def draw(self, shape: tuple[int, ...], like: Tensor, generator: Generator | None) -> Tensor: ...


@dataclass(frozen=True)
class Normal:
    """Independent draws."""

    def draw(self, shape: tuple[int, ...], like: Tensor, generator: Generator | None) -> Tensor:
        return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)


@dataclass(frozen=True)
class Antithetic:
    """Pairs ε, -ε: the samples' mean is the distribution's mean exactly (up to an odd one out)."""

    def draw(self, shape: tuple[int, ...], like: Tensor, generator: Generator | None) -> Tensor:
        *batch, n_samples, n = shape
        half = Normal().draw((*batch, (n_samples + 1) // 2, n), like, generator)
        return torch.cat([half, -half], dim=-2)[..., :n_samples, :]


@dataclass(frozen=True)
class Sobol:
    """Quasi-random points, which cover space more evenly than independent ones.

    One Sobol sequence serves all rows, each shifted (modulo 1) by its own random offset. The sequence is made
    on the CPU: on an accelerator every iteration copies it there.
    """

    def draw(self, shape: tuple[int, ...], like: Tensor, generator: Generator | None) -> Tensor:
        *batch, n_samples, n = shape
        points = torch.quasirandom.SobolEngine(n).draw(n_samples, dtype=like.dtype).to(like.device)
        shift = torch.rand((*batch, 1, n), dtype=like.dtype, device=like.device, generator=generator)
        tail = 0.5 / max(n_samples, 1000)
        return math.sqrt(2) * torch.erfinv(2 * ((points + shift) % 1).clamp(tail, 1 - tail) - 1)

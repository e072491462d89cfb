"""Where samples come from: standard normal noise, drawn before an iteration starts."""

import functools
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
        if generator is None:  # passing None selects an overload that cannot be compiled for dynamic shapes
            return torch.randn(shape, dtype=like.dtype, device=like.device)
        return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)


@dataclass(frozen=True)
class Antithetic:
    """Pairs ε, -ε: the mean of the samples is exactly that of the distribution (if N is even)."""

    def draw(self, shape: tuple[int, ...], like: Tensor, generator: Generator | None) -> Tensor:
        *batch, n_samples, n = shape
        half = Normal().draw((*batch, (n_samples + 1) // 2, n), like, generator)
        return torch.cat([half, -half], dim=-2)[..., :n_samples, :]


@dataclass(frozen=True)
class Sobol:
    """Quasi-random points, which cover space more evenly than independent ones.

    All rows share one Sobol sequence, each with its own random shift (modulo 1). The sequence is generated on
    the CPU and copied to the device in every iteration.
    """

    def draw(self, shape: tuple[int, ...], like: Tensor, generator: Generator | None) -> Tensor:
        *batch, n_samples, n = shape
        dtype = torch.promote_types(like.dtype, torch.float32)  # half precision is too coarse for the points
        points = torch.quasirandom.SobolEngine(n).draw(n_samples, dtype=dtype).to(like.device)
        shift = torch.rand((*batch, 1, n), dtype=dtype, device=like.device, generator=generator)
        tail = 0.5 / max(n_samples, 1000)
        standard = math.sqrt(2) * torch.erfinv(2 * ((points + shift) % 1).clamp(tail, 1 - tail) - 1)
        return standard.to(like.dtype)


@dataclass(frozen=True)
class Colored:
    """Noise correlated over time, for action sequences: power spectrum 1/f^beta along the horizon (iCEM).

    Each of the n = horizon · m numbers has variance one, whatever the horizon. beta = 0 is white; 2 to 4
    makes smooth sequences that explore further.
    """

    beta: float
    horizon: int

    def __post_init__(self) -> None:
        if not self.beta >= 0:
            raise ValueError(f"Colored: beta must be >= 0, got {self.beta}")

    def draw(self, shape: tuple[int, ...], like: Tensor, generator: Generator | None) -> Tensor:
        *batch, n = shape
        if n % self.horizon:
            raise ValueError(f"Colored: horizon must divide the number of dimensions {n}, got {self.horizon}")
        white = Normal().draw((*batch, self.horizon, n // self.horizon), like, generator)
        return (_mixing(self.beta, self.horizon, like.device, like.dtype) @ white).flatten(-2)


@functools.lru_cache(maxsize=32)
def _mixing(beta: float, horizon: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(H, H): a factor of the correlation of a stationary process with power spectrum 1/f^beta."""
    # The period is twice the horizon, so that the end is not correlated with the beginning.
    frequency = torch.fft.rfftfreq(2 * horizon, dtype=torch.float64)
    power = (2 * horizon * frequency).clamp_min(1) ** -beta
    covariance = torch.fft.irfft(power)[:horizon]
    lag = torch.arange(horizon)
    matrix = (covariance / covariance[0])[(lag[:, None] - lag).abs()]
    # Use eigenvalues in double precision: the correlation of smooth noise is singular up to rounding.
    values, vectors = torch.linalg.eigh(matrix)
    factor = vectors * values.clamp_min(0).sqrt()
    return (factor / torch.linalg.vector_norm(factor, dim=-1, keepdim=True)).to(device, dtype)

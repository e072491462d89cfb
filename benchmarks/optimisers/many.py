"""Many problems at once: 10-dimensional functions, each with its own rotation and shift.

Written with operators alone, so that the same lines serve NumPy arrays and torch tensors.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

CONDITION = 1e4


@dataclass(frozen=True)
class Many:
    """`shape` of the rotated and shifted points; x is (B, N, n), or (N, n) for one row."""

    shape: Callable[[Any], Any]
    rotation: Any  # (B, n, n)
    shift: Any  # (B, 1, n)

    def __call__(self, x: Any) -> Any:
        return self.shape((x - self.shift) @ self.rotation)

    def row(self, index: int) -> "Many":
        return Many(self.shape, self.rotation[index], self.shift[index])


def _ellipsoid(convert: Callable[[np.ndarray], Any], n: int) -> Callable[[Any], Any]:
    scales = convert(CONDITION ** (np.arange(n) / (n - 1)))
    return lambda z: (scales * z**2).sum(-1)


def _rosenbrock(convert: Callable[[np.ndarray], Any], n: int) -> Callable[[Any], Any]:
    def shape(z: Any) -> Any:
        z = z + 1  # the optimum is at the shift
        return (100 * (z[..., 1:] - z[..., :-1] ** 2) ** 2 + (1 - z[..., :-1]) ** 2).sum(-1)

    return shape


def _maker(shape: Callable[..., Callable[[Any], Any]]) -> Callable[..., Many]:
    def make(problems: int, n: int, seed: int, convert: Callable[[np.ndarray], Any] = np.asarray) -> Many:
        rng = np.random.default_rng(seed)
        rotation = np.linalg.qr(rng.standard_normal((problems, n, n)))[0]
        shift = rng.uniform(-2, 2, (problems, 1, n))
        return Many(shape(convert, n), convert(rotation), convert(shift))

    return make


PROBLEMS = {"ellipsoid": _maker(_ellipsoid), "Rosenbrock": _maker(_rosenbrock)}


class Timer:
    """`with Timer() as timer: ...`, then timer.seconds."""

    def __enter__(self) -> "Timer":
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start

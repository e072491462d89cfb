"""Many problems at once: 10-dimensional functions, each with its own rotation and shift.

Written with operators alone, so that the same lines serve NumPy arrays and torch tensors.
"""

import contextlib
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


def one_by_one(optimisers: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """For a contender that takes one problem at a time: it solves the first `solved` of them."""

    def solve_many(
        optimiser: str, problem: str, problems: int, solved: int, dimension: int, budget: int, seed: int
    ) -> dict[str, Any]:
        f = PROBLEMS[problem](problems, dimension, seed)
        best = [np.inf] * solved
        with Timer() as timer:
            for row in range(solved):
                watched = _Watched(f.row(row), budget)
                with contextlib.suppress(_SpentError):
                    optimisers[optimiser](watched, dimension, budget, seed + row)
                best[row] = watched.best
        return {"seconds": timer.seconds, "best": best}

    return solve_many


class _SpentError(Exception):
    """A search asks for more than its budget."""


class _Watched:
    """An objective that notes its best value, and stops a search that asks for more than its budget."""

    def __init__(self, f: Callable[[np.ndarray], np.ndarray], budget: int):
        self._f, self._left, self.best = f, budget, np.inf

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if self._left <= 0:
            raise _SpentError
        values = self._f(x)
        self.best = min(self.best, float(values[: self._left].min()))
        self._left -= len(values)
        return values


class Timer:
    """`with Timer() as timer: ...`, then timer.seconds: of the processor, whatever else runs on it."""

    def __enter__(self) -> "Timer":
        self._start = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.process_time() - self._start

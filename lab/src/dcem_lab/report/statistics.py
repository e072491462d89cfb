"""What samples say about the number behind them: 95% intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Around a mean or another number; each may be an array of them."""

    mean: Any
    low: Any
    high: Any

    def holds(self, value: float) -> bool:
        return bool(self.low <= value <= self.high)

    def bounds(self, form: str = ".3f") -> str:
        return f"[{self.low:{form}}, {self.high:{form}}]"


def interval(samples: np.ndarray) -> Interval:
    """Mean and confidence bounds (Student's t) over the first axis; a single sample has no width.

    >>> interval(np.array([1.0, 2.0, 3.0])).mean
    np.float64(2.0)
    """
    n, mean = len(samples), samples.mean(0)
    if n == 1:
        return Interval(mean, mean, mean)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * stats.sem(samples)
    return Interval(mean, mean - half, mean + half)


def log_interval(samples: np.ndarray) -> Interval:
    """The same on a logarithmic scale: the geometric mean and bounds that stay positive."""
    return Interval(*map(np.exp, interval(np.log(samples))))


def bootstrap(samples: np.ndarray, statistic: Callable[..., Any], resamples: int) -> Interval:
    """A statistic of samples (S,), and between which bounds it lies when they are drawn again.

    >>> bootstrap(np.array([1.0, 1.0]), np.mean, 10)
    Interval(mean=1.0, low=1.0, high=1.0)
    """
    value = float(statistic(samples))
    if len(samples) == 1:
        return Interval(value, value, value)
    low, high = stats.bootstrap(
        (samples,), statistic, n_resamples=resamples, confidence_level=CONFIDENCE, method="percentile", rng=0
    ).confidence_interval
    return Interval(value, float(low), float(high))

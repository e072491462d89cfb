"""Statistics of samples: 95% intervals, and whether one number describes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
FEWEST = 20  # samples needed to judge the shape of their distribution
LEAST = 0.05  # a smaller share of the samples does not count as a mode, or as a tail of failures
VALLEY = 0.5  # the most samples between two modes, as a fraction of those at the lower mode
FAILED = 0.5  # an episode with less than this share of the median return has failed


class Interval(NamedTuple):
    """An interval around a mean or another statistic; each field may be an array."""

    mean: Any
    low: Any
    high: Any

    def holds(self, value: float) -> bool:
        return bool(self.low <= value <= self.high)

    def bounds(self, form: str = ".3f") -> str:
        return f"[{self.low:{form}}, {self.high:{form}}]"


def interval(samples: np.ndarray) -> Interval:
    """Mean and confidence bounds (Student's t) over the first axis; a single sample has no width."""
    n, mean = len(samples), samples.mean(0)
    if n == 1:
        return Interval(mean, mean, mean)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * stats.sem(samples)
    return Interval(mean, mean - half, mean + half)


def log_interval(samples: np.ndarray) -> Interval:
    """The same on a logarithmic scale: the geometric mean and bounds that stay positive."""
    return Interval(*map(np.exp, interval(np.log(samples))))


def bootstrap(samples: np.ndarray, statistic: Callable[..., Any], resamples: int) -> Interval:
    """A statistic of samples (S,), with bootstrap bounds from resampling them."""
    value = float(statistic(samples))
    if len(samples) == 1:
        return Interval(value, value, value)
    low, high = stats.bootstrap(
        (samples,), statistic, n_resamples=resamples, confidence_level=CONFIDENCE, method="percentile", rng=0
    ).confidence_interval
    return Interval(value, float(low), float(high))


def stratified(
    groups: Sequence[np.ndarray], statistic: Callable[[np.ndarray], np.ndarray], resamples: int
) -> Interval:
    """A statistic, over the last axis, of all samples of groups (S,), with bootstrap bounds within groups."""
    random = np.random.default_rng(0)
    drawn = np.concatenate([random.choice(group, (resamples, len(group))) for group in groups], -1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(statistic(drawn), [tail, 1 - tail]).tolist()
    return Interval(float(statistic(np.concatenate(groups))), low, high)


def interquartile_mean(samples: np.ndarray, axis: int = -1) -> np.ndarray:
    """The interquartile mean of samples (..., S), which outliers do not affect."""
    return np.asarray(stats.trim_mean(samples, 0.25, axis=axis))


def optimality_gap(samples: np.ndarray, best: float) -> np.ndarray:
    """How far samples (..., S) fall short of the best, on average; excess does not count."""
    return np.maximum(best - samples, 0).mean(-1)


def binned(x: np.ndarray, curves: np.ndarray, bins: int) -> tuple[np.ndarray, ...]:
    """Means over segments of x (C,) and curves (S, C): single measurements are too noisy to see a trend."""
    size = max(1, len(x) // bins)
    whole = len(x) // size * size
    return tuple(part[..., :whole].reshape(*part.shape[:-1], -1, size).mean(-1) for part in (x, curves))


class Humps(NamedTuple):
    """Two modes of samples with a valley between them: the size and the median of each."""

    n_low: int
    low: float
    n_high: int
    high: float

    @property
    def fails(self) -> bool:
        """Whether the lower group has failed, rather than being only slightly lower than the upper one."""
        return self.low < FAILED * self.high

    def __str__(self) -> str:
        return f"{self.n_low} around {self.low:.0f}, {self.n_high} around {self.high:.0f}"


def two_humps(samples: np.ndarray) -> Humps | None:
    """The two groups that samples (S,) fall into, or None if there is only one.

    They are split where the variance within both parts is smallest. Three windows of equal width lie around
    the lower median, around the upper median, and in the middle. A unimodal density has at least as many
    samples in the middle window as in one of the others. Two modes have less than half of either there.

    >>> str(two_humps(np.array([100.0, 110.0] * 10 + [900.0, 910.0] * 10)))
    '20 around 105, 20 around 905'
    >>> two_humps(np.linspace(0, 1000, 100)) is None
    True
    """
    n = len(samples)
    if n < FEWEST:
        return None
    ordered, least = np.sort(samples), max(2, round(LEAST * n))
    cuts = range(least, n - least + 1)
    cut = min(cuts, key=lambda i: i * ordered[:i].var() + (n - i) * ordered[i:].var())
    low, high = float(np.median(ordered[:cut])), float(np.median(ordered[cut:]))
    if low == high:
        return None
    quarter = (high - low) / 4
    below, between, above = np.histogram(samples, low + quarter * np.array([-1, 1, 3, 5]))[0]
    return Humps(cut, low, n - cut, high) if between < VALLEY * min(below, above) else None


def failed(returns: np.ndarray) -> np.ndarray:
    """Which episodes (S,) return less than half of the median."""
    return returns < FAILED * np.median(returns)

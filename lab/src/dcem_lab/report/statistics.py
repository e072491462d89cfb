"""What samples say about the number behind them: 95% intervals, and whether one number is enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
FEWEST = 20  # samples that have a shape
LEAST = 0.05  # a group with a smaller share of the samples is no hump, and fewer failures are no tail
VALLEY = 0.5  # between two humps there are at most so many samples, as a share of the lower hump's
FAILED = 0.5  # an episode with less than this share of the median return has failed


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


def stratified(
    groups: Sequence[np.ndarray], statistic: Callable[[np.ndarray], np.ndarray], resamples: int
) -> Interval:
    """A statistic, over the last axis, of all samples of groups (S,); its bounds when each is drawn again.

    >>> stratified([np.array([1.0, 1.0]), np.array([4.0, 4.0])], interquartile_mean, 10)
    Interval(mean=2.5, low=2.5, high=2.5)
    """
    random = np.random.default_rng(0)
    drawn = np.concatenate([random.choice(group, (resamples, len(group))) for group in groups], -1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(statistic(drawn), [tail, 1 - tail]).tolist()
    return Interval(float(statistic(np.concatenate(groups))), low, high)


def interquartile_mean(samples: np.ndarray) -> np.ndarray:
    """The mean of the middle half of samples (..., S), which an outlier does not move.

    >>> float(interquartile_mean(np.array([0.0, 4.0, 6.0, 1000.0])))
    5.0
    """
    return np.asarray(stats.trim_mean(samples, 0.25, axis=-1))


def optimality_gap(samples: np.ndarray, best: float) -> np.ndarray:
    """What samples (..., S) miss of the best there is, on average; more than the best makes up for nothing.

    >>> float(optimality_gap(np.array([900.0, 700.0, 1400.0, 1000.0]), best=1000))
    100.0
    """
    return np.maximum(best - samples, 0).mean(-1)


class Humps(NamedTuple):
    """Two groups of samples with a valley between them: the size and the median of each."""

    n_low: int
    low: float
    n_high: int
    high: float

    @property
    def fails(self) -> bool:
        """Whether the lower group has failed beside the upper one, and is not only a little lower."""
        return self.low < FAILED * self.high

    def __str__(self) -> str:
        return f"{self.n_low} around {self.low:.0f}, {self.n_high} around {self.high:.0f}"


def two_humps(samples: np.ndarray) -> Humps | None:
    """The two groups that samples (S,) fall into, or None where there is one.

    They are split where the variance within both parts is least. Three windows of equal width lie around the
    lower part's median, around the upper's, and between. A density with one peak has at least as much in the
    middle window as in one of the others; there are two humps where the middle has less than half of either.

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

"""From values to pixels, and round values for an axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high` that is drawn between two pixels; values outside are clamped."""

    low: float
    high: float
    log: bool = False
    first: float = 0.0
    last: float = 1.0

    def between(self, first: float, last: float) -> Scale:
        return Scale(self.low, self.high, self.log, first, last)

    def __call__(self, value: float) -> float:
        low, high = self._inner(self.low), self._inner(self.high)
        part = (self._inner(min(max(value, self.low), self.high)) - low) / (high - low)
        return self.first + part * (self.last - self.first)

    @property
    def placed(self) -> str:
        """Values and pixels of both ends, as scripts read them."""
        return f"{self.low:.6g},{self.high:.6g},{self.first:g},{self.last:g}"

    def _inner(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def ticks(self, about: int = 5) -> list[tuple[float, str]]:
        """Round values and their labels.

        >>> Scale(0, 100_000).ticks(2)
        [(0, '0'), (50000, '50k'), (100000, '100k')]
        >>> Scale(1e-4, 1, log=True).ticks()
        [(0.0001, '10⁻⁴'), (0.001, '10⁻³'), (0.01, '0.01'), (0.1, '0.1'), (1.0, '1')]
        """
        if self.log:
            if self.high / self.low < 50:
                steps = (m * 10.0**power for power in range(-9, 9) for m in (1, 2, 5))
                return [(value, f"{value:g}") for value in steps if self.low <= value <= self.high]
            first, last = math.ceil(self._inner(self.low) - 1e-9), math.floor(self._inner(self.high) + 1e-9)
            every = max(1, math.ceil((last - first + 1) / 6))
            powers = range(first, last + 1, every)
            return [(10.0**power, _power(power)) for power in powers]
        rough = (self.high - self.low) / about
        unit = 10 ** math.floor(math.log10(rough))
        step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(i * step, _label(i * step)) for i in range(first, last + 1)]


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -2 <= power <= 2 else "10" + str(power).translate(_SUPERSCRIPT)


def _label(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{round(value, 10):g}".replace("-", "−")

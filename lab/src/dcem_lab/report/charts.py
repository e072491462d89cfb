"""Figures as inline SVG, with the page's colours, so that they follow its theme.

Series are named by classes c0 to c7, which the stylesheet colours. How they are drawn is in charts.html.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from dcem_lab.report.scales import Scale
from dcem_lab.report.templates import part

WIDTH, HEIGHT = 360, 236
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 8, 36
DOT = 3  # pixels across
TALLEST = 100  # pixels of a column of dots, which are smaller where they would be more
_ROW = 30  # the height of one
_MACROS = "report/charts.html"


@dataclass(frozen=True)
class Line:
    """A curve, with a band around it where `low` and `high` are given."""

    label: str
    color: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    thin: bool = False

    def path(self, x: Scale, y: Scale) -> str:
        return f"M{points(x, y, self.x, self.y)}"

    def band(self, x: Scale, y: Scale) -> str:
        assert self.low is not None and self.high is not None
        back = points(x, y, self.x[::-1], self.high[::-1])
        return f"M{points(x, y, self.x, self.low)}L{back}Z"


@dataclass(frozen=True)
class Rule:
    """A straight line through the whole figure."""

    label: str
    at: float
    dashes: str = "5 3"


@dataclass(frozen=True)
class Mark:
    """A point of a row, with an interval where `low` and `high` are given."""

    label: str
    color: str
    at: float
    low: float | None = None
    high: float | None = None
    shape: str = "dot"  # or diamond, square


@dataclass(frozen=True)
class Dots:
    """Samples (S,), each a dot: one row of a chart.

    low: dots below it are coloured as failures; known: published quartiles and median, below the dots;
    marked: positions of highlighted samples.
    """

    label: str
    values: np.ndarray
    low: float = -np.inf
    known: tuple[float, float, float] | None = None
    marked: Sequence[float] = ()

    def stacked(self, x: Scale) -> list[tuple[float, int]]:
        """The value of every dot and how many are below it in its column."""
        columns = Counter[int]()
        placed = []
        for value in np.sort(self.values).tolist():
            column = int(x(value) // DOT)
            placed.append((value, columns[column]))
            columns[column] += 1
        return placed

    def path(self, x: Scale, base: float, pitch: float, failures: bool) -> str:
        """Dots of one colour, `pitch` above each other, as strokes of zero length with round ends."""
        return "".join(
            f"M{(x(value) // DOT + 0.5) * DOT:g} {base - DOT / 2 - level * pitch:g}h0"
            for value, level in self.stacked(x)
            if (value < self.low) == failures
        )


def place(x: Scale, y: Scale, height: float = HEIGHT, left: float = LEFT) -> tuple[Scale, Scale]:
    """The scales in pixels, as a frame of charts.html draws them."""
    return x.between(left, WIDTH - RIGHT), y.between(height - BOTTOM, TOP)


def lines(
    title: str,
    series: Sequence[Line],
    x: Scale,
    y: Scale,
    xlabel: str,
    ylabel: str,
    rules: Sequence[Rule] = (),
) -> Markup:
    return part("lines", title, series, *place(x, y), xlabel, ylabel, rules, of=_MACROS)


def rows(
    title: str,
    groups: Sequence[tuple[str, Sequence[Mark]]],
    x: Scale,
    xlabel: str,
    rules: Sequence[Rule] = (),
) -> Markup:
    """Labelled rows of points on one axis, to compare a few numbers."""
    height = TOP + _ROW * len(groups) + BOTTOM
    x, y = place(x, Scale(0, len(groups)), height, 14 + 6.4 * max(len(label) for label, _ in groups))
    placed = []
    for i, (label, marks) in enumerate(groups):
        middle = TOP + _ROW * (i + 0.5)
        at = [middle + shift for shift in _shifts(marks, x)]
        placed.append((label, middle, list(zip(marks, at, strict=True))))
    return part("rows", title, placed, x, y, xlabel, rules, height, of=_MACROS)


def dots(title: str, found: Sequence[Dots], x: Scale, xlabel: str) -> Markup:
    """Every sample as a dot, stacked where they would overlap, to show modes, tails and gaps."""
    x, top, placed = x.between(RIGHT, WIDTH - RIGHT), 0.0, []
    highest = [max((level for _, level in one.stacked(x)), default=0) for one in found]
    pitch = min(DOT, TALLEST / max(1, *highest))  # the same for all rows, so that heights compare
    for one, level in zip(found, highest, strict=True):
        base = top + 20 + DOT + pitch * level
        placed.append((one, top, base))
        top = base + 14
    return part("dots", title, placed, x, xlabel, top + BOTTOM, pitch, of=_MACROS)


def points(x: Scale, y: Scale, xs: np.ndarray, ys: np.ndarray) -> str:
    """Of a path, in pixels."""
    return "L".join(f"{x(float(a)):.1f} {y(float(b)):.1f}" for a, b in zip(xs, ys, strict=True))


def _shifts(marks: Sequence[Mark], x: Scale) -> list[float]:
    """Vertical offsets for marks that would overlap."""
    if any(mark.low is not None for mark in marks):
        return [6 * (j - (len(marks) - 1) / 2) for j in range(len(marks))]
    places = [x(mark.at) for mark in marks]
    levels = [sum(abs(other - at) < 7 for other in places[:j]) for j, at in enumerate(places)]
    return [(-7.0 if level % 2 else 7.0) * ((level + 1) // 2) for level in levels]

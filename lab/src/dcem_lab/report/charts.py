"""Figures as inline SVG: their colours are the page's, so that they follow its theme.

Series are named by classes c0 to c7, which the stylesheet colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dcem_lab.report.html import Child, Html, element, join
from dcem_lab.report.scales import Scale

WIDTH, HEIGHT = 360, 236
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 8, 36


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
class Box:
    """Quartiles, and whiskers and single points where they are known."""

    label: str
    color: str
    q1: float
    median: float
    q3: float
    whiskers: tuple[float, float] | None = None
    points: Sequence[float] = field(default=())


def frame(
    title: str,
    x: Scale,
    y: Scale,
    *children: Child,
    xlabel: str = "",
    ylabel: str = "",
    height: float = HEIGHT,
    ticks: bool = True,
    id_: str | None = None,
) -> Html:
    """Axes around what is drawn in their pixels. `x` and `y` must have been placed by `place`."""
    grid: list[Child] = []
    labels: list[Child] = []
    for value, text in x.ticks() if ticks else ():
        at = x(value)
        grid.append(element("line", x1=at, x2=at, y1=y.last, y2=y.first))
        labels.append(element("text", text, x=at, y=y.first + 14, text_anchor="middle"))
    for value, text in y.ticks() if ticks else ():
        at = y(value)
        grid.append(element("line", x1=x.first, x2=x.last, y1=at, y2=at))
        labels.append(element("text", text, x=x.first - 5, y=at + 3.5, text_anchor="end"))
    middle = (x.first + x.last) / 2, (y.first + y.last) / 2
    if xlabel:
        labels.append(element("text", xlabel, x=middle[0], y=height - 4, text_anchor="middle", class_="name"))
    if ylabel:
        turned = f"rotate(-90 10 {middle[1]:.1f})"
        labels.append(
            element("text", ylabel, x=10, y=middle[1], text_anchor="middle", class_="name", transform=turned)
        )
    scales = {"data_x": _pixels(x), "data_y": _pixels(y)}
    return element(
        "svg",
        element("title", title),
        element("g", grid, class_="grid"),
        *children,
        element("g", labels, class_="labels"),
        viewBox=f"0 0 {WIDTH} {height:g}",
        role="img",
        class_="chart",
        id=id_,
        **scales,
    )


def place(x: Scale, y: Scale, height: float = HEIGHT, left: float = LEFT) -> tuple[Scale, Scale]:
    """The scales with the pixels that `frame` draws them at."""
    return x.between(left, WIDTH - RIGHT), y.between(height - BOTTOM, TOP)


def lines(
    title: str,
    series: Sequence[Line],
    x: Scale,
    y: Scale,
    xlabel: str,
    ylabel: str,
    rules: Sequence[Rule] = (),
) -> Html:
    x, y = place(x, y)
    drawn: list[Child] = []
    for rule in rules:
        at = y(rule.at)
        line = element("line", x1=x.first, x2=x.last, y1=at, y2=at, stroke_dasharray=rule.dashes)
        drawn.append(element("g", element("title", rule.label), line, class_="rule"))
    for one in series:
        parts: list[Child] = [element("title", one.label)]
        if one.low is not None and one.high is not None:
            outline = [*_points(x, y, one.x, one.low), *_points(x, y, one.x[::-1], one.high[::-1])]
            parts.append(element("path", d=f"M{'L'.join(outline)}Z", class_="band"))
        path = "M" + "L".join(_points(x, y, one.x, one.y))
        parts.append(element("path", d=path, class_="thin line" if one.thin else "line"))
        drawn.append(element("g", parts, class_=one.color))
    return frame(title, x, y, *drawn, xlabel=xlabel, ylabel=ylabel)


def rows(
    title: str,
    groups: Sequence[tuple[str, Sequence[Mark]]],
    x: Scale,
    xlabel: str,
    rules: Sequence[Rule] = (),
) -> Html:
    """Labelled rows of points on one axis: for a few numbers that are to be compared."""
    step, left = 30, 14 + 6.4 * max(len(label) for label, _ in groups)
    height = TOP + step * len(groups) + BOTTOM
    x, y = place(x, Scale(0, len(groups)), height, left)
    drawn: list[Child] = []
    for rule in rules:
        at = x(rule.at)
        line = element("line", x1=at, x2=at, y1=y.last, y2=y.first, stroke_dasharray=rule.dashes)
        drawn.append(element("g", element("title", rule.label), line, class_="rule"))
    for value, text in x.ticks():
        drawn.append(element("text", text, x=x(value), y=y.first + 14, text_anchor="middle", class_="tick"))
    for i, (label, marks) in enumerate(groups):
        middle = TOP + step * (i + 0.5)
        line = element("line", x1=x.first, x2=x.last, y1=middle, y2=middle, class_="row")
        name = element("text", label, x=x.first - 8, y=middle + 4, text_anchor="end", class_="tick")
        drawn += [line, name]
        drawn += [
            _mark(mark, x, middle + shift) for mark, shift in zip(marks, _shifts(marks, x), strict=True)
        ]
    return frame(title, x, y, *drawn, xlabel=xlabel, height=height, ticks=False)


def boxes(title: str, groups: Sequence[tuple[str, Sequence[Box]]], y: Scale, ylabel: str) -> Html:
    """Box plots side by side, in labelled groups."""
    x, y = place(Scale(0, len(groups)), y)
    drawn: list[Child] = []
    for value, text in y.ticks():
        drawn.append(element("line", x1=x.first, x2=x.last, y1=y(value), y2=y(value), class_="row"))
        drawn.append(element("text", text, x=x.first - 5, y=y(value) + 3.5, text_anchor="end", class_="tick"))
    for i, (label, found) in enumerate(groups):
        width = (x(1) - x(0)) * 0.72 / max(len(found), 1)
        for j, box in enumerate(found):
            center = x(i + 0.5) + width * (j - (len(found) - 1) / 2)
            drawn.append(_box(box, y, center, width * 0.7))
        for k, word in enumerate(label.split("\n")):
            drawn.append(
                element(
                    "text", word, x=x(i + 0.5), y=y.first + 14 + 12 * k, text_anchor="middle", class_="tick"
                )
            )
    return frame(title, x, y, *drawn, ylabel=ylabel, ticks=False)


def legend(entries: Sequence[tuple[str, str]]) -> Html:
    """Class and label of what is in the figures above or below."""
    items = (element("li", element("span", class_=f"swatch {color}"), label) for color, label in entries)
    return element("ul", *items, class_="legend")


def figure(caption: Child, *panels: Child, wide: bool = False) -> Html:
    """Panels beside each other where there is room, with a caption."""
    grid = element("div", *panels, class_="panels wide" if wide else "panels")
    return element("figure", grid, element("figcaption", caption))


def panel(title: str, *children: Child) -> Html:
    return element("div", element("h4", title), *children, class_="panel")


def _points(x: Scale, y: Scale, xs: np.ndarray, ys: np.ndarray) -> list[str]:
    return [f"{x(float(a)):.1f} {y(float(b)):.1f}" for a, b in zip(xs, ys, strict=True)]


def _pixels(scale: Scale) -> str:
    return f"{scale.low:.6g},{scale.high:.6g},{scale.first:g},{scale.last:g}"


def _shifts(marks: Sequence[Mark], x: Scale) -> list[float]:
    """Up or down for marks that would cover each other."""
    if any(mark.low is not None for mark in marks):
        return [6 * (j - (len(marks) - 1) / 2) for j in range(len(marks))]
    places = [x(mark.at) for mark in marks]
    levels = [sum(abs(other - at) < 7 for other in places[:j]) for j, at in enumerate(places)]
    return [(-7.0 if level % 2 else 7.0) * ((level + 1) // 2) for level in levels]


def _mark(mark: Mark, x: Scale, at: float) -> Html:
    center = x(mark.at)
    parts: list[Child] = [element("title", mark.label)]
    if mark.low is not None and mark.high is not None:
        parts.append(element("line", x1=x(mark.low), x2=x(mark.high), y1=at, y2=at, class_="interval"))
    if mark.shape == "dot":
        parts.append(element("circle", cx=center, cy=at, r=4))
    else:
        turned = f"rotate(45 {center:.1f} {at:.1f})" if mark.shape == "diamond" else None
        parts.append(element("rect", x=center - 3.5, y=at - 3.5, width=7, height=7, transform=turned))
    return element("g", *parts, class_=f"mark {mark.color}")


def _box(box: Box, y: Scale, center: float, width: float) -> Html:
    left, right = center - width / 2, center + width / 2
    parts: list[Child] = [element("title", f"{box.label}: {box.median:.0f} [{box.q1:.0f}–{box.q3:.0f}]")]
    if box.whiskers is not None:
        low, high = box.whiskers
        parts.append(element("line", x1=center, x2=center, y1=y(low), y2=y(box.q1)))
        parts.append(element("line", x1=center, x2=center, y1=y(box.q3), y2=y(high)))
    top = y(box.q3)
    parts.append(element("rect", x=left, y=top, width=width, height=max(y(box.q1) - top, 1.0)))
    parts.append(element("line", x1=left, x2=right, y1=y(box.median), y2=y(box.median), class_="median"))
    parts += [element("circle", cx=center, cy=y(point), r=1.5) for point in box.points]
    return element("g", join(*parts), class_=f"box {box.color}")

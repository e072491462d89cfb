"""The figure of a latent action space: predicted returns over a slice of it, and actions decoded in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dcem_lab.report.charts import WIDTH, figure, frame, panel, place
from dcem_lab.report.html import Child, Html, code, element, join, paragraph
from dcem_lab.report.pictures import shades
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import provenance, read_json, read_rows

_SQUARE = 352  # height of a frame whose plot is as high as wide


@dataclass(frozen=True)
class Slice:
    """What `dcem_lab.suite.latent_slice` wrote of one controller."""

    record: dict[str, Any]
    moments: np.ndarray  # (K,), steps of the episode
    axis: np.ndarray  # (n,), of a and of b
    returns: np.ndarray  # (K, n, n), by moment, a and b
    cells: np.ndarray  # (c,), where actions were decoded, along either direction
    actions: np.ndarray  # (K, c, c, H, m)
    path: np.ndarray  # (T, 2), where the plans of the episode lie
    predicted: np.ndarray  # (T,), their returns

    @property
    def below_highest(self) -> np.ndarray:
        """The returns, less the highest of their moment: at a run all are larger than at the start."""
        return self.returns - self.returns.max(axis=(1, 2), keepdims=True)


def latent_figure(folder: Path) -> Html | None:
    """Every controller under results/dmc/latent; None where there is none."""
    slices = {path.parent.name: read_slice(path.parent) for path in sorted(folder.glob("*/run.json"))}
    if not slices:
        return None
    depth = float(min(one.below_highest.min() for one in slices.values()))
    return join(
        paragraph(
            "What the latent space has learned, in pictures. The first two principal directions of all plans "
            "ẑ of an episode span a slice through it. Above: the return that the world model predicts for "
            "the decoded plan, as the planner sees it. The ring is the plan of that moment; the thin line "
            "runs through all plans of the episode, the thick one through those of the next steps. Below: "
            "the action sequences that the same places decode to.",
        ),
        _color_bar(depth),
        *(_controller(name, one, depth) for name, one in slices.items()),
        provenance({name: one.record for name, one in slices.items()}),
    )


def read_slice(folder: Path) -> Slice:
    (moments, axis, _), returns = _array(folder / "surface.csv", "moment", "a", "b", "return")
    (_, cells, *_), actions = _array(folder / "actions.csv", "moment", "a", "b", "t", "action", "value")
    path = np.array(
        [[float(row[name]) for name in ("a", "b", "return")] for row in read_rows(folder / "path.csv")]
    )
    record = read_json(folder / "run.json")
    return Slice(record, moments, axis, returns, cells, actions, path[:, :2], path[:, 2])


def _array(path: Path, *columns: str) -> tuple[list[np.ndarray], np.ndarray]:
    """The last column as an array over the values of the others, and these values."""
    rows = read_rows(path)
    *places, values = (np.array([float(row[name]) for row in rows]) for name in columns)
    axes, indices = zip(*(np.unique(each, return_inverse=True) for each in places), strict=True)
    array = np.full([len(axis) for axis in axes], np.nan)
    array[indices] = values
    return list(axes), array


def _controller(name: str, one: Slice, depth: float) -> Html:
    panels = [
        panel(
            f"Step {moment:g} of {len(one.path)}",
            _heat_map(one, i, depth),
            _returns(one, i),
            _decoded(one, i),
        )
        for i, moment in enumerate(one.moments)
    ]
    horizon, numbers = one.actions.shape[-2:]
    low, high = (f"{value:.2g}".replace("-", "−") for value in (one.actions.min(), one.actions.max()))
    caption = join(
        code(name),
        f": an episode of {one.record['task']} with a return of {one.record['total']:.0f}. The two "
        f"directions hold {one.record['share']:.0%} of the variance of its plans, which go round the middle "
        f"{_rounds(one.path):.0f} times. An action sequence is {horizon} steps, from left to right, of "
        f"{numbers} actions, from top to bottom; lightest is {low}, darkest {high}.",
    )
    return figure(caption, *panels)


def _rounds(path: np.ndarray) -> float:
    angle = np.unwrap(np.arctan2(path[:, 1], path[:, 0]))
    return abs(float(angle[-1] - angle[0])) / (2 * np.pi)


def _heat_map(one: Slice, i: int, depth: float) -> Html:
    x, y = _placed(one)
    moment = int(one.moments[i])
    image = _image(x, y, one.axis, shades(one.below_highest[i].T, depth, 0), "auto")
    following = one.path[moment : moment + one.actions.shape[-2] + 1]
    plans = element(
        "g",
        element("g", element("path", d=_line(x, y, one.path)), class_="plans"),
        element("path", d=_line(x, y, following), class_="line"),
        class_="c1",
    )
    return _framed(f"Predicted return over the slice at step {moment}", one, i, image, plans)


def _returns(one: Slice, i: int) -> Html:
    planned, highest = one.predicted[int(one.moments[i])], one.returns[i].max()
    return paragraph(f"Predicted return: {planned:.1f} at the ring, {highest:.1f} at best.", class_="small")


def _decoded(one: Slice, i: int) -> Html:
    x, y = _placed(one)
    # Cells by b and a; in each, actions from top to bottom and steps from left to right.
    mosaic = one.actions[i][..., ::-1].transpose(1, 3, 0, 2)
    mosaic = mosaic.reshape(mosaic.shape[0] * mosaic.shape[1], -1)
    low, high = float(one.actions.min()), float(one.actions.max())
    address = shades(mosaic, low - 0.2 * (high - low), high)  # white would hide where a cell ends
    gaps: list[Child] = []
    for edge in ((one.cells[1:] + one.cells[:-1]) / 2).tolist():
        gaps.append(element("line", x1=x(edge), x2=x(edge), y1=y.first, y2=y.last))
        gaps.append(element("line", x1=x.first, x2=x.last, y1=y(edge), y2=y(edge)))
    between = element("g", *gaps, stroke="var(--paper)", stroke_width=3)
    image = _image(x, y, one.cells, address, "pixelated")
    return _framed(f"Actions decoded in the slice at step {one.moments[i]:g}", one, i, image, between)


def _framed(title: str, one: Slice, i: int, *children: Child) -> Html:
    """The axes of the slice, and a ring at the plan of the moment."""
    x, y = _placed(one)
    a, b = one.path[int(one.moments[i])].tolist()
    ring = element("circle", cx=x(a), cy=y(b), r=6, class_="lowest")
    names = "along the first direction", "along the second"
    return frame(title, x, y, *children, ring, xlabel=names[0], ylabel=names[1], height=_SQUARE)


def _placed(one: Slice) -> tuple[Scale, Scale]:
    half = float(one.axis[1] - one.axis[0]) / 2
    side = Scale(float(one.axis[0]) - half, float(one.axis[-1]) + half)
    return place(side, side, _SQUARE)


def _image(x: Scale, y: Scale, axis: np.ndarray, address: str, rendering: str) -> Html:
    """Pixels (or cells) whose middles are at the values of the axis."""
    half = (axis[1] - axis[0]) / 2
    low, high = float(axis[0] - half), float(axis[-1] + half)
    return element(
        "image", x=x(low), y=y(high), width=x(high) - x(low), height=y(low) - y(high), href=address,
        preserveAspectRatio="none", image_rendering=rendering,
    )  # fmt: skip


def _line(x: Scale, y: Scale, path: np.ndarray) -> str:
    return "M" + "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in path.tolist())


def _color_bar(depth: float) -> Html:
    x = Scale(depth, 0).between(2, WIDTH - 8)
    address = shades(np.linspace(depth, 0, 256)[None], depth, 0)
    bar = element(
        "image", x=x.first, y=0, width=x.last - x.first, height=12, href=address, preserveAspectRatio="none"
    )
    labels = [element("text", text, x=x(at), y=25, text_anchor="middle") for at, text in x.ticks()]
    name = "predicted return, less the highest of the slice"
    words = element("text", name, x=WIDTH / 2, y=41, text_anchor="middle", class_="name")
    svg = element("svg", element("title", name), bar, *labels, words, viewBox=f"0 0 {WIDTH} 46", role="img",
                  class_="chart")  # fmt: skip
    return element("div", svg, class_="panel")

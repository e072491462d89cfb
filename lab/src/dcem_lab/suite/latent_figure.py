"""The figure of a latent action space: predicted returns over a slice of it, and actions decoded in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from dcem_lab.report.charts import WIDTH, place, points
from dcem_lab.report.pictures import shades
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import read_columns, read_json
from dcem_lab.report.templates import render

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
        """The returns minus the highest of their moment: while running, all are larger than at the start."""
        return self.returns - self.returns.max(axis=(1, 2), keepdims=True)


def latent_figure(folder: Path) -> Markup:
    """Every controller under results/dmc/latent; empty where there is none."""
    slices = {path.parent.name: read_slice(path.parent) for path in sorted(folder.glob("*/run.json"))}
    if not slices:
        return Markup()
    depth = float(min(one.below_highest.min() for one in slices.values()))
    return render(
        "suite/latent_figure.html",
        bar=Scale(depth, 0).between(2, WIDTH - 8),
        shades=shades(np.linspace(depth, 0, 256)[None], depth, 0),
        slices={name: _drawn(one, depth) for name, one in slices.items()},
        records={name: one.record for name, one in slices.items()},
    )


def read_slice(folder: Path) -> Slice:
    (moments, axis, _), returns = _array(folder / "surface.csv", "moment", "a", "b", "return")
    (_, cells, *_), actions = _array(folder / "actions.csv", "moment", "a", "b", "t", "action", "value")
    steps = read_columns(folder / "path.csv")
    path = np.column_stack([steps["a"], steps["b"]])
    return Slice(
        read_json(folder / "run.json"), moments, axis, returns, cells, actions, path, steps["return"]
    )


def _array(path: Path, *columns: str) -> tuple[list[np.ndarray], np.ndarray]:
    """The last column as an array over the values of the others, and these values."""
    table = read_columns(path)
    *places, values = (table[name] for name in columns)
    axes, indices = zip(*(np.unique(each, return_inverse=True) for each in places), strict=True)
    array = np.full([len(axis) for axis in axes], np.nan)
    array[indices] = values
    return list(axes), array


def _drawn(one: Slice, depth: float) -> dict[str, Any]:
    """What the template needs of one controller."""
    side, cells = _covering(one.axis), _covering(one.cells)
    x, y = place(side, side, _SQUARE)
    horizon = one.actions.shape[-2]
    low, high = float(one.actions.min()), float(one.actions.max())
    moments = []
    for i, step in enumerate(one.moments.astype(int).tolist()):
        # Cells by b and a; in each, actions from top to bottom and steps from left to right.
        mosaic = one.actions[i][..., ::-1].transpose(1, 3, 0, 2)
        mosaic = mosaic.reshape(mosaic.shape[0] * mosaic.shape[1], -1)
        moments.append(
            {
                "step": step,
                "ring": one.path[step].tolist(),
                "returns": shades(one.below_highest[i].T, depth, 0),
                "following": points(x, y, *one.path[step : step + horizon + 1].T),
                "planned": one.predicted[step],
                "highest": one.returns[i].max(),
                # White would hide the edge of a cell.
                "actions": shades(mosaic, low - 0.2 * (high - low), high),
            }
        )
    lightest, darkest = (f"{value:.2g}".replace("-", "−") for value in (low, high))
    return {
        "slice": one,
        "x": x,
        "y": y,
        "height": _SQUARE,
        "side": side,
        "cells": cells,
        "edges": ((one.cells[1:] + one.cells[:-1]) / 2).tolist(),
        "path": points(x, y, *one.path.T),
        "rounds": _rounds(one.path),
        "lightest": lightest,
        "darkest": darkest,
        "moments": moments,
    }


def _rounds(path: np.ndarray) -> float:
    angle = np.unwrap(np.arctan2(path[:, 1], path[:, 0]))
    return abs(float(angle[-1] - angle[0])) / (2 * np.pi)


def _covering(axis: np.ndarray) -> Scale:
    """Pixels (or cells) whose middles are at the values of the axis."""
    half = float(axis[1] - axis[0]) / 2
    return Scale(float(axis[0]) - half, float(axis[-1]) + half)

"""How every figure of the report looks, and how it is saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

# Distinguishable in print and with any colour vision (Okabe and Ito).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#555555")
WIDTH = 7.2  # inches, of a figure as wide as the page

_RC: Any = {
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "svg.hashsalt": "dcem",  # the same figure is the same file
}

# Two-sided 95% quantiles of Student's t, by degrees of freedom.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@contextmanager
def style() -> Iterator[Any]:
    """Figures made inside look alike, on any machine; gives pyplot.

    with style() as plt:
        figure, axes = plt.subplots()
    """
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    with plt.rc_context(_RC):
        yield plt
        plt.close("all")


def save(figure: Any, folder: Path | str, name: str) -> list[Path]:
    """Write folder/name.png and .svg, and return their paths."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths = [Path(folder) / f"{name}.{kind}" for kind in ("png", "svg")]
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, metadata=metadata)
    return paths


def interval(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and 95% confidence bounds (Student's t) over the first axis; a single sample has no width.

    >>> interval(np.array([1.0, 2.0, 3.0]))[0]
    np.float64(2.0)
    """
    n, mean = len(samples), samples.mean(0)
    if n == 1:
        return mean, mean, mean
    t = _T95[n - 2] if n - 2 < len(_T95) else 1.96
    half = t * samples.std(0, ddof=1) / np.sqrt(n)
    return mean, mean - half, mean + half


def log_interval(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same on a logarithmic scale: the geometric mean and bounds that stay positive."""
    mean, low, high = (np.exp(value) for value in interval(np.log(samples)))
    return mean, low, high

"""Minimise a function with many local minima, and plot how the search converges to the lowest one.

python examples/minimize_2d.py        # writes out/examples/minimize_2d.png
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse
from torch import Tensor

import dcem

LOWEST = torch.tensor([1.0, -1.0])
START, SIGMA = torch.tensor([-1.2, 1.2]), 1.2


def f(x: Tensor) -> Tensor:
    """A bowl around LOWEST with ripples on it: (..., 2) -> (...). Gradient descent stops in the first one."""
    d = x - LOWEST
    return 0.4 * d.square().sum(-1) + 2 - torch.cos(5 * d).sum(-1)


def solve(steps: int) -> dcem.Solution:
    first = dcem.Gaussian(sigma=SIGMA)
    solver = dcem.DCEM(n_samples=200, n_elite=20, n_iters=steps, tau=0.3, distribution=first)
    return dcem.minimize(f, solver, START, generator=torch.Generator().manual_seed(1), trace=True)


def main(steps: int = 8, folder: Path = Path("out/examples")) -> Path:
    sol = solve(steps)
    # A record holds the distribution after its update; its samples came from the one before.
    means = torch.stack([START, *(record.mean for record in sol.trace)])
    sigmas = torch.stack([torch.full((2,), SIGMA), *(record.sigma for record in sol.trace)])
    fig, axes = plt.subplots(1, 4, figsize=(10.4, 2.95), layout="constrained")
    for i, ax in enumerate(axes):
        t = round(i * (steps - 1) / 3)
        draw_surface(ax)
        draw_samples(ax, sol.trace[t].samples, sol.trace[t].weights)
        for width in (1, 2):
            size = 2 * width * sigmas[t]
            ax.add_patch(Ellipse(means[t], *size, fill=False, color="#222222", lw=1.4 / width))
        ax.plot(*means[: t + 1].T, color="#222222", lw=1.2, marker="o", ms=3, zorder=4)
        ax.set_title(f"iteration {t + 1}", fontsize=10)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "minimize_2d.png"
    fig.savefig(path, dpi=120)
    plt.close(fig)
    x, y = sol.x.tolist()
    print(f"found ({x:.3f}, {y:.3f}), where f is {sol.cost:.4f}; wrote {path}")
    return path


def draw_surface(ax: Axes, reach: float = 3.0) -> None:
    grid = torch.linspace(-reach, reach, 200)
    x = torch.stack(torch.meshgrid(grid, grid, indexing="xy"), dim=-1)
    ax.contourf(grid, grid, f(x), levels=20, cmap="Blues_r", alpha=0.85)
    ax.plot(*LOWEST, marker="*", ms=13, color="gold", mec="black", mew=0.6, zorder=2)
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")


def draw_samples(ax: Axes, samples: Tensor, weights: Tensor) -> None:
    """The higher a sample's weight in the update, the larger and darker it is."""
    w = weights / weights.max()
    look = {"cmap": "Oranges", "vmin": -0.1, "vmax": 1.2, "edgecolor": "#222222", "lw": 0.4}
    ax.scatter(*samples.T, s=4 + 18 * w, c=w, zorder=3, **look)


if __name__ == "__main__":
    main()

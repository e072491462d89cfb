"""Learn an objective through its own minimiser, until its lowest point lies where it should.

    python examples/learn_the_objective.py        # writes out/examples/learn_the_objective.gif

The objective has a dozen wells; their positions and depths are parameters. Every training step minimises it
with DCEM, measures how far the solution x̂ is from the target, and backpropagates through the solve.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from torch import Tensor, nn

import dcem

TARGET = torch.tensor([1.8, -1.6])
N_WELLS, REACH = 12, 3.0


class Landscape(nn.Module):
    """f(x) = 0.05 |x|² - Σ_j depth_j exp(-2 |x - centre_j|²),  (..., 2) -> (...)."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.rand(N_WELLS, 2, generator=generator) * 5 - 2.5)
        self.depth = nn.Parameter(torch.rand(N_WELLS, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        distance = (x.unsqueeze(-2) - self.centre).square().sum(-1)
        return 0.05 * x.square().sum(-1) - (self.depth * torch.exp(-2 * distance)).sum(-1)


def main(steps: int = 60, folder: Path = Path("out/examples")) -> Path:
    generator = torch.Generator().manual_seed(3)
    landscape = Landscape(generator)
    optimizer = torch.optim.Adam(landscape.parameters(), lr=0.05, betas=(0.5, 0.9))
    box = dcem.Gaussian(sigma=1.5, bounds=(-REACH, REACH))
    solver = dcem.DCEM(n_samples=100, n_elite=10, n_iters=8, tau=1.0, normalize=True, distribution=box)
    x0 = torch.zeros(8, 2)  # a batch of eight solves with independent noise: a less noisy gradient
    fig, ax = plt.subplots(figsize=(4, 4.2), layout="constrained")
    writer = PillowWriter(fps=8)
    folder.mkdir(parents=True, exist_ok=True)
    path, centres = folder / "learn_the_objective.gif", []
    with writer.saving(fig, path, dpi=80):
        for step in range(steps):
            x_hat = dcem.minimize(landscape, solver, x0, generator=generator, cost=False).x
            loss = (x_hat - TARGET).square().sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            centres.append(x_hat.detach().mean(0))
            if step % 2 == 0:
                draw(ax, landscape, x_hat.detach(), torch.stack(centres))
                ax.set_title(f"step {step}: x̂ is {loss.sqrt():.2f} from the target", fontsize=10)
                writer.grab_frame()
            optimizer.step()
    plt.close(fig)
    print(f"x̂ ended {loss.sqrt():.2f} from the target; wrote {path}")
    return path


@torch.no_grad()
def draw(ax: Axes, landscape: Landscape, answers: Tensor, path: Tensor) -> None:
    grid = torch.linspace(-REACH, REACH, 120)
    x = torch.stack(torch.meshgrid(grid, grid, indexing="xy"), dim=-1)
    ax.clear()
    ax.contourf(grid, grid, landscape(x), levels=20, cmap="Blues_r", alpha=0.85)
    ax.plot(*TARGET, marker="*", ms=18, color="gold", mec="black", mew=0.6)
    ax.plot(*path.T, color="#222222", lw=1)
    ax.scatter(*answers.T, s=36, color="#fd8d3c", edgecolor="#222222", lw=0.6, zorder=3)
    ax.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), xticks=[], yticks=[], aspect="equal")


if __name__ == "__main__":
    main()

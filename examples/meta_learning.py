"""Few-shot regression with a context found by search: one network, ten points of a new sine, an argmin.

    python examples/meta_learning.py [FOLDER]        # writes out/examples/meta_learning.{csv,png}

A network y(x, z) fits a whole family of sines; z says which one. For a new sine, z is the argmin of the error
on its ten points, and training backpropagates through that argmin, as CAVIA does (Zintgraf et al., 2019).
CAVIA takes a few gradient steps from z = 0. Here DCEM can replace them: the rest of the code is the same.
DCEM needs no gradient of the error in z, but at a price: after 500 updates gradient steps are far ahead.
"""

import csv
import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Generator, Tensor, nn

import dcem

CONTEXT = 4  # numbers in z
SOLVERS = {
    "gradient steps": lambda: dcem.GradientDescent(n_iters=5, learning_rate=dcem.Positive(0.1)),
    "DCEM": lambda: dcem.DCEM(n_samples=16, n_elite=3, n_iters=5, tau=1.0, normalize=True),
    "DCEM with learned settings": lambda: dcem.DCEM(
        n_samples=24,
        n_elite=3,
        n_iters=6,
        tau=dcem.PerIteration(dcem.Positive(torch.ones(6))),
        normalize=True,
        distribution=dcem.Gaussian(sigma=dcem.Positive(1.0)),
        noise=dcem.noise.Antithetic(),
    ),
}


class Regressor(nn.Module):
    def __init__(self, solver: dcem.Solver) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1 + CONTEXT, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1)
        )
        self.adapt = dcem.Argmin(lambda task, z: self.error(z, *task), solver, n=CONTEXT)

    def error(self, z: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Mean squared errors (...) of contexts z (..., d) on points x, y (..., K)."""
        z = z.unsqueeze(-2).expand(*z.shape[:-1], x.shape[-1], CONTEXT)
        inputs = torch.cat([x.unsqueeze(-1).expand(*z.shape[:-1], 1) / 5, z], dim=-1)
        return (self.net(inputs).squeeze(-1) - y).square().mean(-1)

    def forward(
        self, points: tuple[Tensor, Tensor], queries: tuple[Tensor, Tensor], generator: Generator
    ) -> Tensor:
        """The error on the queries (B,), after fitting z to the points."""
        return self.error(self.adapt(points, generator=generator), *queries)


def sines(
    count: int, shots: int, generator: Generator
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """`shots` points and as many queries of sines with their own height and phase."""
    height, phase, x = (torch.rand(count, size, generator=generator) for size in (1, 1, 2 * shots))
    x = 10 * x - 5
    y = (0.1 + 4.9 * height) * torch.sin(x - math.pi * phase)
    return (x[:, :shots], y[:, :shots]), (x[:, shots:], y[:, shots:])


def train(name: str, steps: int, seed: int) -> list[tuple[int, float]]:
    """The error on new sines, at every tenth of the training."""
    generator = torch.manual_seed(seed)
    model = Regressor(SOLVERS[name]())
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    curve = []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        model(*sines(25, 10, generator), generator).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % max(steps // 10, 1) == 0:
            held_out = Generator().manual_seed(1000)
            error = model(*sines(250, 10, held_out), held_out).detach()
            curve.append((step, error.mean().item()))
    return curve


def main(steps: int = 500, folder: Path = Path("out/examples"), seeds: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    fig, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
    with (folder / "meta_learning.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["solver", "seed", "step", "error"])
        for i, name in enumerate(SOLVERS):
            for seed in range(seeds):
                curve = train(name, steps, seed)
                rows.writerows([name, seed, step, f"{error:.4f}"] for step, error in curve)
                ax.semilogy(*zip(*curve, strict=True), color=f"C{i}", label=name if seed == 0 else None)
                print(f"{name}, seed {seed}: error {curve[-1][1]:.3f}", flush=True)
    ax.set(xlabel="update", ylabel="mean squared error", title="new sines, from ten points each")
    ax.legend()
    path = folder / "meta_learning.png"
    fig.savefig(path, dpi=120)
    plt.close(fig)
    print(f"wrote {path}")
    return path


if __name__ == "__main__":
    main(folder=Path(*sys.argv[1:2] or ["out/examples"]))

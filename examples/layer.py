"""DCEM as a layer: a network that predicts by minimising a learned energy.

    python examples/layer.py        # writes out/examples/layer.png

The model never outputs y. It scores pairs (x, y), and its prediction is the y with the lowest score:
ŷ(x) = argmin_y E(x, y). Training is as usual: the loss of ŷ, backward, step.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

import dcem


class Regressor(nn.Module):
    """x (B, 1) -> ŷ (B, 1). `dcem.argmin.Argmin` is the ready-made layer, for any sizes."""

    def __init__(self) -> None:
        super().__init__()
        hidden = [nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
        self.energy = nn.Sequential(*hidden, nn.Linear(64, 1))
        self.solver = dcem.DCEM(n_samples=50, n_elite=5, n_iters=5, tau=1.0, normalize=True)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        return self.energy(torch.cat([x.expand_as(y), y], dim=-1)).squeeze(-1)

    def forward(self, x: Tensor) -> Tensor:
        def energy(y: Tensor) -> Tensor:  # (B, N, 1) -> (B, N): N candidates for each of B problems
            return self.score(x.unsqueeze(-2), y)

        return dcem.minimize(energy, self.solver, torch.zeros_like(x), cost=False).x


def main(steps: int = 400, folder: Path = Path("out/examples")) -> Path:
    torch.manual_seed(0)
    x = torch.rand(200, 1) * 4 - 2
    y = torch.sin(3 * x) + 0.1 * torch.randn_like(x)
    model, losses = Regressor(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        batch = torch.randint(len(x), (32,))
        loss = (model(x[batch]) - y[batch]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), width_ratios=(1, 1.5), layout="constrained")
    left.semilogy(losses, color="#3182bd", lw=1)
    left.set(xlabel="update", ylabel="squared error", title="learning curve")
    draw_predictions(right, model, x, y)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "layer.png"
    fig.savefig(path, dpi=120)
    plt.close(fig)
    print(f"squared error {losses[0]:.2f} -> {sum(losses[-20:]) / len(losses[-20:]):.2f}; wrote {path}")
    return path


@torch.no_grad()
def draw_predictions(ax: Axes, model: Regressor, x: Tensor, y: Tensor) -> None:
    xs, ys = torch.linspace(-2, 2, 120), torch.linspace(-1.8, 1.8, 120)
    energy = model.score(xs[:, None, None], ys[:, None].expand(120, 120, 1))  # (x, y)
    above = energy - energy.amin(-1, keepdim=True)
    ax.contourf(xs, ys, (above + 1e-3).log().T, levels=20, cmap="Blues_r", alpha=0.85)
    ax.plot(x, y, ".", color="#222222", ms=3, label="data")
    ax.plot(xs, model(xs.unsqueeze(-1)), color="#e6550d", lw=2, label="ŷ = argmin E")
    ax.set(xlabel="x", ylabel="y", title="the learned energy (darker is lower) and its minimiser")
    ax.legend(loc="lower left")


if __name__ == "__main__":
    main()

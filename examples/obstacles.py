"""Around obstacles to a goal: plans that satisfy a constraint at every step, from a hundred starting points.

    python examples/obstacles.py        # writes out/examples/obstacles.png

A point mass is pushed through a course of discs. `constraint` says how deep a state lies inside each of them.
A plan is feasible if any sample of the search was. After every step, the controller plans again.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor

import dcem
from dcem.control import closed_loop

CENTRES = torch.tensor([[1.0, 0.3], [2.0, -0.6], [2.2, 0.9], [3.2, 0.1]])
RADII = torch.tensor([0.4, 0.5, 0.45, 0.45])
GOAL = torch.tensor([4.2, 0.0])


class PointMass:
    """State (x, y, ẋ, ẏ), action an acceleration (2,); steps of 0.1 seconds."""

    action_dim = 2

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        position, velocity = state.split(2, dim=-1)
        velocity = velocity + 0.1 * action
        position = position + 0.1 * velocity
        cost = (position - GOAL).square().sum(-1) + 0.1 * velocity.square().sum(-1)
        return torch.cat([position, velocity], dim=-1), cost


def depth(state: Tensor, action: Tensor) -> Tensor:
    """How deep inside each disc a state lies, negative outside: (..., 4) -> (..., discs)."""
    gap = torch.linalg.vector_norm(state[..., None, :2] - CENTRES, dim=-1)
    return RADII - gap


def starts(count: int, generator: torch.Generator) -> Tensor:
    """Slow states left of the course."""
    unit = torch.rand(count, 4, generator=generator)
    return (2 * unit - 1) * torch.tensor([0.4, 1.0, 0.3, 0.3]) - torch.tensor([0.3, 0.0, 0.0, 0.0])


def controller(constrained: bool = True) -> dcem.MPC:
    solver = dcem.DCEM(n_samples=100, n_elite=10, n_iters=8, tau=0.1)
    return dcem.MPC(PointMass(), 20, -2.0, 2.0, solver=solver, constraint=depth if constrained else None)


@torch.no_grad()
def main(steps: int = 60, folder: Path = Path("out/examples")) -> Path:
    generator = torch.manual_seed(0)
    state = starts(100, generator)
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
    for ax, constrained in zip(axes, (False, True), strict=True):
        path = closed_loop(controller(constrained), state, steps, generator=generator).states
        hit = (depth(path, path[..., :0]) > 0).any(-1).any(0).sum()
        name = "constrained" if constrained else "free"
        print(f"{name}: {hit} of {len(state)} paths touch a disc")
        for centre, radius in zip(CENTRES, RADII, strict=True):
            ax.add_patch(plt.Circle(tuple(centre.tolist()), radius.item(), color="0.8"))
        ax.plot(path[..., 0], path[..., 1], lw=0.8, color="C0", alpha=0.5)
        ax.plot(*GOAL, "*", color="C3", markersize=14)
        ax.set(title=f"{name}: {hit} of {len(state)} touch", aspect="equal", xlabel="x", ylabel="y")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "obstacles.png"
    fig.savefig(path, dpi=120)
    plt.close(fig)
    print(f"wrote {path}")
    return path


if __name__ == "__main__":
    main()

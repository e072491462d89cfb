"""A search with learned settings: full CEM's cost on the cartpole, with a tenth of its trajectories.

    python examples/learned_optimiser.py        # writes out/examples/learned_optimiser.png

A differentiable search passes gradients to its own settings. Here they are learned for a family of problems,
swing-ups from random states. The settings are the initial spread of each of 20 forces and, for each of ten
iterations, the temperature, the number of elites, the smoothing, and a factor on the spread. The loss is the
cost of the resulting plan. Full CEM has 1,000 samples, 100 elites and ten iterations, from the same spread.
From twice the spread it is slightly better than this search, and with only ten elites far better.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import nn

import dcem
from dcem import Fraction, PerIteration, Positive
from dcem.systems import Cartpole

HORIZON, N, T = 20, 100, 10


def controller(solver: dcem.Solver) -> dcem.MPC:
    return dcem.MPC(Cartpole(), HORIZON, -100.0, 100.0, solver=solver)


def cem(n_samples: int, n_elite: int) -> dcem.MPC:
    spread = dcem.Gaussian(sigma=50.0)
    return controller(dcem.DCEM(n_samples=n_samples, n_elite=n_elite, n_iters=T, tau=0, distribution=spread))


def learner() -> dcem.MPC:
    settings = {
        "tau": PerIteration(Positive(torch.full((T,), 0.1))),
        "n_elite": PerIteration(Positive(torch.full((T,), 6.0))),
        "smoothing": PerIteration(Fraction(torch.full((T,), 0.1))),
        "widen": PerIteration(Positive(torch.full((T,), 1.0))),
        "distribution": dcem.Gaussian(sigma=Positive(torch.full((HORIZON,), 50.0)), estimator="likelihood"),
        "normalize": True,  # as in the paper: the defaults are for searching, not for training
    }
    return controller(dcem.DCEM(n_samples=N, n_iters=T, **settings))


@torch.no_grad()
def cost(mpc: dcem.MPC) -> float:
    """The cost of plans from 200 states not used in training."""
    states = Cartpole.initial_states(200, generator=torch.Generator().manual_seed(1))
    return mpc(states, generator=torch.Generator().manual_seed(2)).cost.mean().item()


def learn(mpc: dcem.MPC, steps: int) -> list[tuple[int, float]]:
    generator = torch.Generator().manual_seed(0)
    # The spread is in newtons: its scale is a hundred times that of the other settings.
    groups = [{"params": [p], "lr": 2.0 if "sigma" in name else 0.03} for name, p in mpc.named_parameters()]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    curve = [(0, cost(mpc))]
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        mpc(Cartpole.initial_states(32, generator=generator), generator=generator).cost.mean().backward()
        nn.utils.clip_grad_norm_(mpc.parameters(), 1.0)  # some states are chaotic, and would dominate
        optimizer.step()
        schedule.step()
        if step % max(steps // 10, 1) == 0:
            curve.append((step, cost(mpc)))
    return curve


def main(steps: int = 200, folder: Path = Path("out/examples")) -> Path:
    mpc = learner()
    curve = learn(mpc, steps)
    budgets = {"CEM": (N, 10), "full CEM": (10 * N, 100), "full CEM, ten elites": (10 * N, 10)}
    lines = {f"{name}, {n * T:,} trajectories": cost(cem(n, k)) for name, (n, k) in budgets.items()}
    fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left.plot(*zip(*curve, strict=True), "C0", lw=2, label=f"learned, {N * T:,} trajectories")
    for i, (name, value) in enumerate(lines.items()):
        left.axhline(value, color=f"C{i + 1}", ls="--", label=name)
        print(f"{name:42} cost {value:6.2f}")
    print(f"{f'learned, {N * T:,} trajectories':42} cost {curve[-1][1]:6.2f}")
    left.set(xlabel="update", ylabel="cost of a plan")
    left.legend()
    for name in ("tau", "smoothing", "widen"):
        right.plot([value.item() for value in getattr(mpc.solver, name)()], marker="o", label=name)
    right.set(xlabel="iteration of the search", title="what was learned")
    right.legend()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "learned_optimiser.png"
    fig.savefig(path, dpi=120)
    plt.close(fig)
    print(f"wrote {path}")
    return path


if __name__ == "__main__":
    main()

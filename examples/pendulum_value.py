"""A learned terminal value for a short plan: five steps are then as good as fifty.

    python examples/pendulum_value.py        # writes out/examples/pendulum_value.png

The pendulum's motor is too weak to lift it directly: it must swing back first, which costs now and pays off
later. A plan of five steps does not reach that far. So we learn the cost-to-go of each state by fitted value
iteration whose backup is a plan: V(x) ← Σ γ^t c_t + γ^H V(x_H), with the best five actions the planner finds.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import dcem
from dcem.control import closed_loop
from dcem.systems import Pendulum

DISCOUNT = 0.98
SCALE = torch.tensor([1.0, 1.0, 8.0])  # of the training states: speeds of up to 8


class Value(nn.Sequential):
    """Minus the cost-to-go: states (..., 3) -> (...)."""

    def forward(self, state: Tensor) -> Tensor:
        return -100 * nn.functional.softplus(super().forward(state / SCALE)).squeeze(-1)


def controller(horizon: int, value: nn.Module | None = None, n_samples: int = 100) -> dcem.MPC:
    solver = dcem.DCEM(n_samples=n_samples, n_elite=5, n_iters=4, tau=0)
    return dcem.MPC(Pendulum(), horizon, -2.0, 2.0, solver=solver, value=value, discount=DISCOUNT)


def learn(steps: int, generator: torch.Generator) -> Value:
    """A value learned from five-step plans from random states, which end in its moving average."""
    value = Value(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    target = AveragedModel(value, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    planner = controller(5, target, n_samples=40)
    optimizer = torch.optim.Adam(value.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        states = Pendulum.initial_states(256, generator=generator) * SCALE
        with torch.no_grad():
            cost = planner(states, generator=generator).cost
        optimizer.zero_grad()
        nn.functional.smooth_l1_loss(-value(states) / 100, cost / 100, beta=0.1).backward()
        optimizer.step()
        schedule.step()
        target.update_parameters(value)
    return value


def main(steps: int = 500, folder: Path = Path("out/examples")) -> Path:
    generator = torch.manual_seed(0)
    value = learn(steps, generator)
    start = Pendulum.initial_states(32, generator=generator)
    planners = {"50 steps": controller(50), "5 steps": controller(5), "5 steps, value": controller(5, value)}
    fig, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for name, mpc in planners.items():
        costs = closed_loop(mpc, start, min(steps, 120), generator=generator).costs
        print(f"{name:15} cost {costs.sum(0).mean():6.1f}")
        ax.plot(costs.mean(1), lw=2, label=name)
    ax.set(xlabel="step", ylabel="cost of a step", title="swinging up from 32 random states")
    ax.legend()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pendulum_value.png"
    fig.savefig(path, dpi=120)
    plt.close(fig)
    print(f"wrote {path}")
    return path


if __name__ == "__main__":
    main()

"""A controller as a policy class: learn the parameters of a system from a controller's actions on it.

    python examples/imitation.py        # writes out/examples/imitation.png

A demonstrator balances a cartpole. We see its states and the forces it plans, but know neither the mass nor
the length of the pole. Our own differentiable controller plans from the same states. The difference of the
forces is backpropagated *through the planning*, and improves both guesses.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor

import dcem
from dcem.systems.cartpole import Cartpole

TRUTH, GUESS = torch.tensor([0.3, 0.8]), torch.tensor([0.1, 0.5])  # pole mass, half-length
SEEN = 3  # forces of each plan that the demonstrator shows


def plan(constants: Tensor, states: Tensor, generator: torch.Generator) -> Tensor:
    """The first forces (..., SEEN) that a controller plans from states (..., 5), for a pole like this."""
    model = Cartpole(pole_mass=constants[0], half_length=constants[1])
    solver = dcem.DCEM(n_samples=100, n_elite=10, tau=0.1, distribution=dcem.Gaussian(sigma=30.0))
    mpc = dcem.MPC(model, horizon=8, low=-100.0, high=100.0, solver=solver)
    return mpc(states, generator=generator, cost=False).actions[..., :SEEN, 0]


def states_near_upright(count: int, generator: torch.Generator) -> Tensor:
    states = Cartpole.initial_states(count, generator=generator)
    angle = 0.3 * torch.atan2(states[:, 3], states[:, 2])
    return torch.stack([states[:, 0], states[:, 1], angle.cos(), angle.sin(), 2 * states[:, 4]], dim=-1)


def recover(steps: int, seed: int = 0) -> Tensor:
    """The guesses (steps + 1, 2) while learning."""
    generator = torch.Generator().manual_seed(seed)
    states = states_near_upright(64, generator)
    with torch.no_grad():
        shown = plan(TRUTH, states, generator)
    log_guess = GUESS.log().requires_grad_()  # both are positive
    optimizer = torch.optim.Adam([log_guess], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    guesses = [GUESS]
    for _ in range(steps):
        # Two plans with independent noise: the product of their errors is unbiased, a square would not be.
        errors = (plan(log_guess.exp(), states.expand(2, -1, -1), generator) - shown) / 20
        loss = (errors[0] * errors[1]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        guesses.append(log_guess.detach().exp())
    return torch.stack(guesses)


def main(steps: int = 80, folder: Path = Path("out/examples")) -> Path:
    guesses = recover(steps)
    fig, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for i, (name, color) in enumerate((("pole mass (kg)", "#3182bd"), ("half-length (m)", "#e6550d"))):
        ax.plot(guesses[:, i], color=color, lw=2, label=name)
        ax.axhline(TRUTH[i].item(), color=color, ls="--", lw=1)
    ax.set(xlabel="update", ylim=(0, None), title="what the pole is like (dashed: the truth)")
    ax.legend(loc="lower right")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "imitation.png"
    fig.savefig(path, dpi=120)
    plt.close(fig)
    mass, length = guesses[-1].tolist()
    print(f"pole mass {mass:.2f} (true 0.3), half-length {length:.2f} (true 0.8); wrote {path}")
    return path


if __name__ == "__main__":
    main()

"""The pendulum as a differentiable function: the smallest system that needs a plan."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor


@dataclass(frozen=True)
class Pendulum:
    """A rod on a hinge and a motor too weak to lift it at once; the goal is to swing it up and hold it.

    The state is (cos θ, sin θ, θ̇) with θ = 0 upright, the action one torque u, clamped to ±max_torque:

        θ̇' = θ̇ + dt (3 g / (2 l) sin θ + 3 u / (m l²)),     θ' = θ + dt θ̇'.

    A step from a state costs θ² + 0.1 θ̇² + 0.001 u², with θ in [-π, π].

    Every physical constant is a number, or a tensor that broadcasts against the leading dimensions of the
    state and may require gradients.

    >>> state, cost = Pendulum().step(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([2.0]))
    >>> state[2], cost
    (tensor(0.3000), tensor(0.0040))
    """

    gravity: float | Tensor = 10.0
    mass: float | Tensor = 1.0
    length: float | Tensor = 1.0
    max_torque: float = 2.0
    dt: float = 0.05

    state_dim: ClassVar[int] = 3
    action_dim: ClassVar[int] = 1

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(..., 3) and (..., 1) -> the next state (..., 3), and the cost (...) of this step."""
        cos, sin, omega = state.unbind(-1)
        theta = torch.atan2(sin, cos)
        torque = action.squeeze(-1).clamp(-self.max_torque, self.max_torque)
        cost = theta.square() + 0.1 * omega.square() + 1e-3 * torque.square()
        pull = 1.5 * self.gravity / self.length * sin
        push = 3 * torque / (self.mass * self.length**2)
        omega = omega + self.dt * (pull + push)
        theta = theta + self.dt * omega
        return torch.stack([theta.cos(), theta.sin(), omega], dim=-1), cost

    @staticmethod
    def initial_states(
        *shape: int,
        generator: Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Random states (*shape, 3): θ in ±π, θ̇ in ±1."""
        unit = torch.rand(2, *shape, generator=generator, device=device, dtype=dtype)
        theta, omega = (2 * unit - 1).unbind(0)
        theta = math.pi * theta
        return torch.stack([theta.cos(), theta.sin(), omega], dim=-1)

    def draw(self, state: Tensor, ax: Any, action: float | None = None) -> None:
        """Draw one state (3,) on Matplotlib axes, and the torque by the colour of the hinge."""
        cos, sin, _ = state.tolist()
        length = float(self.length)
        ax.clear()
        ax.plot([0, length * sin], [0, length * cos], color="C1", linewidth=6, solid_capstyle="round")
        turn = 0.0 if action is None else action / self.max_torque
        ax.scatter([0], [0], c=[turn], cmap="coolwarm", vmin=-1, vmax=1, s=80, zorder=3, edgecolors="0.2")
        reach = 1.2 * length
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])
        ax.set_frame_on(False)

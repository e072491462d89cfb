"""The cartpole as a differentiable function (Barto et al., 1983, with continuous forces)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor


@dataclass(frozen=True)
class Cartpole:
    """A pole on a cart that is pushed along a rail; the goal is to swing it up and hold it near the centre.

    The state is (x, ẋ, cos θ, sin θ, θ̇) with θ = 0 upright, the action one force u, clamped to ±max_force.
    With M = m_c + m_p, half-length l and c = (u + m_p l θ̇² sin θ) / M:

        θ̈ = (g sin θ - c cos θ) / (l (4/3 - m_p cos²θ / M)),     ẍ = c - m_p l θ̈ cos θ / M,

    integrated by explicit Euler steps of dt. A step from a state costs 0.1 x² + 1e-5 u² - cos θ.

    Every physical constant is a number, or a tensor that broadcasts against the leading dimensions of the
    state and may require gradients.

    >>> cartpole = Cartpole(pole_mass=torch.tensor(0.2, requires_grad=True))
    >>> state, cost = cartpole.step(torch.tensor([0.0, 0.0, -1.0, 0.0, 0.0]), torch.tensor([10.0]))
    >>> cost
    tensor(1.0010)
    """

    gravity: float | Tensor = 9.8
    cart_mass: float | Tensor = 1.0
    pole_mass: float | Tensor = 0.1
    half_length: float | Tensor = 0.5
    max_force: float = 100.0
    dt: float = 0.05

    state_dim: ClassVar[int] = 5
    action_dim: ClassVar[int] = 1

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(..., 5) and (..., 1) -> the next state (..., 5), and the cost (...) of this step."""
        return self._unroll(state, action, 1.0)

    def sequence_cost(
        self,
        state: Tensor,
        actions: Tensor,
        discount: float = 1.0,
        terminal_cost: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Total cost (*B, N) of actions (*B, N, H, 1) from states (*B, 5), see `dcem.control.Model`.

        The same as H calls of `step`, but between steps the angle stays an angle, and forces are prepared
        all at once.
        """
        last, total = self._unroll(state.unsqueeze(-2), actions.squeeze(-1), discount)
        if terminal_cost is None:
            return total
        return total + discount ** actions.shape[-2] * terminal_cost(last)

    def _unroll(self, state: Tensor, forces: Tensor, discount: float) -> tuple[Tensor, Tensor]:
        """The last state (..., 5) and the total cost (...) of forces (..., H); states broadcast."""
        x, v, cos, sin, omega = state.unbind(-1)
        theta = torch.atan2(sin, cos)
        # Time first, so that constants broadcast against the leading dimensions.
        force = forces.movedim(-1, 0).clamp(-self.max_force, self.max_force)
        mass = self.cart_mass + self.pole_mass
        moment = self.pole_mass * self.half_length / mass
        reach = 4 / 3 * self.half_length
        pushes = force / mass
        efforts = 1e-5 * force * force
        total: Tensor | float = 0.0
        for t, (push, effort) in enumerate(zip(pushes, efforts, strict=True)):
            sin, cos = theta.sin(), theta.cos()
            cost = 0.1 * x * x + effort - cos
            total = total + (cost if discount == 1 else discount**t * cost)
            lever = moment * cos
            c = torch.addcmul(push, omega * omega, moment * sin)
            alpha = torch.addcmul(self.gravity * sin, c, cos, value=-1) / (reach - lever * cos)
            x, v = x + self.dt * v, v + self.dt * torch.addcmul(c, lever, alpha, value=-1)
            theta, omega = theta + self.dt * omega, omega + self.dt * alpha
        assert isinstance(total, Tensor)
        return torch.stack([x, v, theta.cos(), theta.sin(), omega], dim=-1), total

    @staticmethod
    def initial_states(
        *shape: int,
        generator: Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Random states (*shape, 5): x, ẋ in ±0.5, θ in ±π, θ̇ in ±1.

        >>> Cartpole.initial_states(100, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([100, 5])
        """
        unit = torch.rand(4, *shape, generator=generator, device=device, dtype=dtype)
        x, v, theta, omega = (2 * unit - 1).unbind(0)
        theta = math.pi * theta
        return torch.stack([0.5 * x, 0.5 * v, theta.cos(), theta.sin(), omega], dim=-1)

    def draw(self, state: Tensor, ax: Any, action: float | None = None) -> None:
        """Draw one state (5,) on Matplotlib axes, and the force as an arrow."""
        x, _, cos, sin, _ = state.tolist()
        length = 2 * float(self.half_length)
        ax.clear()
        ax.axhline(0, color="0.6", linewidth=1, zorder=0)
        left, right = x - 0.3, x + 0.3
        ax.fill([left, right, right, left], [-0.15, -0.15, 0.15, 0.15], facecolor="C0", edgecolor="0.2")
        ax.plot([x, x + length * sin], [0, length * cos], color="C1", linewidth=5, solid_capstyle="round")
        ax.plot([x], [0], "o", color="0.2", markersize=5)
        if action is not None:
            reach = 1.5 * action / self.max_force
            ax.annotate(
                "", (x + reach, -0.3), (x, -0.3), arrowprops={"arrowstyle": "->", "color": "C3", "lw": 2}
            )
        ax.set(xlim=(-3, 3), ylim=(-1.5, 1.5), aspect="equal", yticks=[])
        ax.set_frame_on(False)

"""mpc.pytorch: the linear-quadratic problem, and the pendulum, by its differentiable iLQR."""

import torch
from mpc import mpc
from torch import Tensor, nn

from energies import Pendulum, Quadratic
from judging import Layer, Torch, serve


def layers(problem: str) -> dict[str, Layer]:
    make = {"quadratic": quadratic, "pendulum": pendulum}.get(problem)
    return {"mpc.pytorch": Torch(make())} if make else {}


def quadratic():
    energy = Quadratic(torch)
    H = energy.steps

    def solve(theta: Tensor) -> Tensor:
        rows = len(theta)
        start, goal, weights = theta[:, :4], theta[:, 4:8], energy.scales(theta).square()
        C, c = costs(weights, torch.cat([-weights[:, :4] * goal, torch.zeros(rows, 2)], -1), H)
        F = torch.cat([energy.dynamics, energy.push], 1).expand(H, rows, 4, 6)
        control = mpc.MPC(
            4, 2, H + 1, lqr_iter=1, verbose=-1, exit_unconverged=False, detach_unconverged=False
        )
        _, plan, _ = control(start, mpc.QuadCost(C, c), mpc.LinDx(F, torch.zeros(H, rows, 4)))
        return plan[:-1].transpose(0, 1).reshape(rows, energy.n)

    return solve


def pendulum():
    energy = Pendulum(torch)
    weights, goal = torch.tensor(energy.weights).square(), torch.tensor([1.0, 0, 0, 0])

    def solve(theta: Tensor) -> Tensor:
        rows, H = len(theta), energy.steps
        C, c = costs(weights.expand(rows, 4), (-weights * goal).expand(rows, 4), H)
        control = mpc.MPC(
            3,
            1,
            H + 1,
            lqr_iter=100,
            grad_method=mpc.GradMethods.AUTO_DIFF,
            verbose=-1,
            exit_unconverged=False,
            detach_unconverged=False,
            n_batch=rows,
        )
        _, plan, _ = control(theta[:, :3], mpc.QuadCost(C, c), Model(energy, theta[:, 3:]))
        return plan[:-1].transpose(0, 1).reshape(rows, energy.n)

    return solve


def costs(weights: Tensor, linear: Tensor, H: int) -> tuple[Tensor, Tensor]:
    """Of states and controls at times 0 to H; its control after the last state costs as well, and is 0."""
    return torch.diag_embed(weights).expand(H + 1, -1, -1, -1), linear.expand(H + 1, -1, -1)


class Model(nn.Module):
    def __init__(self, energy: Pendulum, weights: Tensor):
        super().__init__()
        self.energy, self.weights = energy, weights

    def forward(self, state: Tensor, torque: Tensor) -> Tensor:
        """One state a row, or several in turn: it linearises all times of a plan at once."""
        many = state.view(-1, len(self.weights), 3).transpose(0, 1)
        moved = self.energy.model(many, torque.view(-1, len(self.weights), 1).transpose(0, 1), self.weights)
        return moved.transpose(0, 1).reshape(state.shape)


if __name__ == "__main__":
    serve(layers, packages=("mpc",))

"""TorchOpt: Adam, differentiated through its steps, and by its implicit differentiation at where it ends."""

from collections.abc import Callable

import torch
import torchopt
from torch import Tensor

from budgets import ADAM, FIRST_MULTIPLIER, STEPS
from energies import ENERGIES, Energy, Projection
from judging import Layer, Torch, serve

Objective = Callable[[Tensor, Tensor], Tensor]


def layers(problem: str) -> dict[str, Layer]:
    rate, energy = ADAM[problem], ENERGIES[problem](torch)
    if isinstance(energy, Energy):

        def objective(x: Tensor, theta: Tensor) -> Tensor:
            return energy(x.unsqueeze(-2), theta).sum()

        def start(theta: Tensor) -> Tensor:
            return theta.new_zeros(len(theta), energy.n)

        def answer(x: Tensor, theta: Tensor) -> Tensor:
            return x

    else:  # on the multiplier of Σx = 1, whose convex dual has its minimum where the sum is right

        def objective(nu: Tensor, theta: Tensor) -> Tensor:
            return torch.nn.functional.softplus(theta + nu).sum() - Projection.k * nu.sum()

        def start(theta: Tensor) -> Tensor:
            return theta.new_full((len(theta), 1), FIRST_MULTIPLIER)

        def answer(nu: Tensor, theta: Tensor) -> Tensor:
            return Projection.c * torch.sigmoid(theta + nu)

    implicit = implicitly(objective, rate)
    return {
        "TorchOpt Adam, unrolled": Torch(
            lambda theta: answer(descend(objective, start(theta), theta, rate), theta)
        ),
        "TorchOpt Adam, implicit": Torch(lambda theta: answer(implicit(start(theta), theta), theta)),
    }


def descend(objective: Objective, x: Tensor, theta: Tensor, rate: float, graph: bool = True) -> Tensor:
    """`graph`: keep the graph of every step, so that the answer is a function of θ."""
    adam = torchopt.adam(lr=rate)
    x = x.requires_grad_()
    state = adam.init((x,))
    for _ in range(STEPS):
        slope = torch.autograd.grad(objective(x, theta), (x,), create_graph=graph)
        updates, state = adam.update(slope, state, inplace=False)
        (x,) = torchopt.apply_updates((x,), updates, inplace=False)
        if not graph:
            x = x.detach().requires_grad_()
    return x


def implicitly(objective: Objective, rate: float) -> Callable[[Tensor, Tensor], Tensor]:
    """By `custom_root`, whose linear solver is conjugate gradients on the normal equations by default."""
    slope = torch.func.grad(objective)

    @torchopt.diff.implicit.custom_root(slope, argnums=1)
    def solve(x: Tensor, theta: Tensor) -> Tensor:
        with torch.enable_grad():
            return descend(objective, x, theta.detach(), rate, graph=False).detach()

    return solve


if __name__ == "__main__":
    serve(layers, packages=("torchopt",))

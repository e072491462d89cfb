"""dcem: its cross-entropy method, differentiated in three ways, and its soft top-k.

Beside it what it is to beat: gradient descent, unrolled, in plain torch.
"""

from collections.abc import Callable

import torch
from torch import Tensor

import dcem
from budgets import BUDGETS, FIRST_MULTIPLIER, PLAIN, STEPS
from energies import ENERGIES, Energy, Projection
from judging import Layer, Torch, serve

MODES = {
    "DCEM, unrolled": dcem.backward.Unroll(),
    "DCEM, truncated": dcem.backward.Truncate(3),
    "DCEM, implicit": dcem.backward.Implicit(),
}


def layers(problem: str) -> dict[str, Layer]:
    descent = {"gradient descent, unrolled": Torch(descend(problem, PLAIN[problem]))}
    if problem == "projection":
        return {"dcem.lml": Torch(lambda theta: Projection.c * dcem.lml(theta, Projection.k))} | descent
    return {label: Torch(search(problem, mode)) for label, mode in MODES.items()} | descent


def search(problem: str, mode: dcem.backward.Backward) -> Callable[[Tensor], Tensor]:
    energy = ENERGIES[problem](torch)
    n_samples, n_elite, n_iters = BUDGETS[problem]
    spread = dcem.Gaussian(sigma=energy.sigma)
    solver = dcem.DCEM(n_samples=n_samples, n_elite=n_elite, n_iters=n_iters, distribution=spread)

    def layer(theta: Tensor) -> Tensor:
        x0 = theta.new_zeros(len(theta), energy.n)
        return dcem.minimize(lambda x: energy(x, theta), solver, x0, backward=mode, cost=False).x

    return layer


def descend(problem: str, rate: float) -> Callable[[Tensor], Tensor]:
    """x ← x − rate ∇E(x), with the graph of every step."""
    energy = ENERGIES[problem](torch)

    def layer(theta: Tensor) -> Tensor:
        x = theta.new_zeros(len(theta), energy.n, requires_grad=True)
        for _ in range(STEPS):
            value = energy(x.unsqueeze(-2), theta).sum()
            x = x - rate * torch.autograd.grad(value, x, create_graph=True)[0]
        return x

    def dual(theta: Tensor) -> Tensor:
        """On the multiplier ν of Σx = 1, the one unknown there is: a sum of x that is too small raises it."""
        nu = theta.new_full((len(theta), 1), FIRST_MULTIPLIER)
        for _ in range(STEPS):
            nu = nu + rate * (Projection.k - torch.sigmoid(theta + nu).sum(-1, keepdim=True))
        return Projection.c * torch.sigmoid(theta + nu)

    return layer if isinstance(energy, Energy) else dual


if __name__ == "__main__":
    serve(layers, packages=("dcem",))

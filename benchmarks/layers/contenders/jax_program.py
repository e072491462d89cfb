"""A JAX program: DCEM with the same budget, unrolled, compiled with its derivative, and the soft top-k alone.

The temperature is 0.1 of the values' standard deviation; noise is drawn inside, by JAX's own generator.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
from jax import Array

from budgets import BUDGETS
from energies import ENERGIES, Energy, Projection
from judging import Layer, serve
from peers.jax_program import lml

TAU = 0.1


def layers(problem: str) -> dict[str, Layer]:
    energy = ENERGIES[problem](jnp)
    if not isinstance(energy, Energy):
        return {"JAX LML": Compiled(lambda theta, seed: Projection.c * lml(theta, Projection.k))}
    settings = BUDGETS[problem]
    return {"JAX DCEM": Compiled(lambda theta, seed: solve(energy, theta, seed, settings))}


def solve(energy: Energy, theta: Array, seed: int, settings: tuple[int, int, int]) -> Array:
    n_samples, n_elite, n_iters = settings
    rows = len(theta)

    def iterate(state: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], None]:
        mean, spread = state
        x = mean[:, None] + spread[:, None] * jax.random.normal(key, (rows, n_samples, energy.n))
        v = energy(x, theta)
        scores = (v.mean(-1, keepdims=True) - v) / (TAU * v.std(-1, keepdims=True))
        p = lml(scores, n_elite)[..., None] / n_elite
        # Around the mean before the update, as in CMA-ES: the spread shrinks less while the mean travels.
        return ((p * x).sum(-2), jnp.sqrt((p * (x - mean[:, None]) ** 2).sum(-2))), None

    first = jnp.zeros((rows, energy.n)), jnp.full((rows, energy.n), energy.sigma)
    return jax.lax.scan(iterate, first, jax.random.split(jax.random.key(seed), n_iters))[0][0]


class Compiled:
    """The answer and its pullback, one program; torch sees what comes out."""

    def __init__(self, layer: Callable[[Array, int], Array]):
        @jax.jit
        def both(theta: Array, seed: int, cotangent: Array) -> tuple[Array, Array]:
            x, pull = jax.vjp(lambda theta: layer(theta, seed), theta)
            return x, pull(cotangent)[0]

        self.both = both

    def run(self, theta: torch.Tensor, cotangent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seed = int(torch.randint(2**31, ()))
        x, gradient = self.both(jnp.from_dlpack(theta), seed, jnp.from_dlpack(cotangent))
        return torch.from_dlpack(x), torch.from_dlpack(gradient)


if __name__ == "__main__":
    serve(layers, packages=("jax",))

"""A JAX program: the differentiable cross-entropy method in forty lines, written for this problem alone.

The soft top-k by ten Newton steps kept in a bracket, with a derivative of its own; ten iterations unrolled;
`jax.jit` of the whole, and of the whole with its derivative. Noise is drawn inside, by JAX's own generator.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

# XLA makes as many threads as there are cores to run on, whatever OMP_NUM_THREADS says.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(os.environ["OMP_NUM_THREADS"])])

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import torch  # noqa: E402
from jax import Array  # noqa: E402

import problems  # noqa: E402
from measure import Job, serve  # noqa: E402

jax.config.update("jax_enable_x64", True)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def lml(a: Array, k: int) -> Array:
    n = a.shape[-1]
    order = jnp.sort(a)[..., ::-1]
    nu = -(order[..., k - 1] + order[..., k]) / 2
    low, high = -order[..., 0] - 20, -order[..., -1] + 20
    for _ in range(10):
        y = jax.nn.sigmoid(a + nu[..., None])
        mean = y.mean(-1)
        error = jnp.log(mean / (1 - mean)) - jnp.log(k / (n - k))
        low, high = jnp.where(error < 0, nu, low), jnp.where(error > 0, nu, high)
        step = nu - error * mean * (1 - mean) / (y * (1 - y)).mean(-1)
        nu = jnp.where((step > low) & (step < high), step, (low + high) / 2)
    return jax.nn.sigmoid(a + nu[..., None])


def _lml_backward(k: int, y: Array, g: Array) -> tuple[Array]:
    s = y * (1 - y)
    return (s * (g - (s * g).sum(-1, keepdims=True) / s.sum(-1, keepdims=True)),)


lml.defvjp(lambda a, k: (lml(a, k),) * 2, _lml_backward)


def solve(centre: Array, x0: Array, seed: int, settings: tuple[int, int, int, float]) -> Array:
    n_samples, n_elite, n_iters, sigma = settings
    mean, spread = x0, jnp.full_like(x0, sigma)
    for key in jax.random.split(jax.random.key(seed), n_iters):
        noise = jax.random.normal(key, (*x0.shape[:-1], n_samples, x0.shape[-1]), x0.dtype)
        x = mean[..., None, :] + spread[..., None, :] * noise
        v = 0.5 * ((x - centre[..., None, :]) ** 2).sum(-1)
        p = lml((v.mean(-1, keepdims=True) - v) / v.std(-1, keepdims=True), n_elite)[..., None] / n_elite
        mean = (p * x).sum(-2)
        spread = jnp.sqrt((p * (x - mean[..., None, :]) ** 2).sum(-2))
    return mean


Found = tuple[torch.Tensor, torch.Tensor | None, tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Compiled(Job):
    """Each of the two passes is one program; torch sees what comes out."""

    both: Callable[[], Found]

    def run(self, backward: bool) -> Found:
        return self.both() if backward else (self.forward(), None, ())


def dcem(problem: problems.Quadratic) -> Job:
    settings = (problem.n_samples, problem.n_elite, problem.n_iters, problem.sigma)
    x0 = jnp.asarray(problem.x0.numpy())
    cotangent = torch.randn(problem.x0.shape, generator=torch.Generator().manual_seed(1)).to(problem.x0.dtype)
    forward = jax.jit(lambda centre, seed: solve(centre, x0, seed, settings))

    @jax.jit
    def forward_and_backward(centre: Array, seed: int, cotangent: Array) -> tuple[Array, Array]:
        x, pull = jax.vjp(lambda centre: solve(centre, x0, seed, settings), centre)
        return x, pull(cotangent)[0]

    def inputs() -> tuple[Array, int]:
        return jnp.from_dlpack(problem.centre.detach()), int(torch.randint(2**31, ()))

    def both() -> Found:
        x, gradient = forward_and_backward(*inputs(), jnp.from_dlpack(cotangent))
        return torch.from_dlpack(x), cotangent, (torch.from_dlpack(gradient),)

    return Compiled(lambda: torch.from_dlpack(forward(*inputs())), problem.parameters, both)


if __name__ == "__main__":
    serve({"dcem": dcem}, packages=("jax",))

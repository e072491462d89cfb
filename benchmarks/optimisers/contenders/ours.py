"""dcem through its public names. One entry a configuration: a solver for T iterations in a box."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import dcem
import many
from bbob import BOUND, SIGMA, Counted, serve
from dcem.noise import Antithetic

BOX = {"sigma": SIGMA, "bounds": (-BOUND, BOUND)}

FREE = dcem.FullGaussian(SIGMA)  # without bounds, as pycma
PAPER = {"tau": 1.0, "normalize": True, "distribution": dcem.Gaussian(estimator="likelihood", **BOX)}

SOLVERS: dict[str, Callable[[int], Any]] = {
    "dcem": lambda T: dcem.DCEM(n_iters=T, distribution=dcem.Gaussian(**BOX)),
    "dcem, tau=0": lambda T: dcem.DCEM(n_iters=T, tau=0, distribution=dcem.Gaussian(**BOX)),
    "dcem, paper": lambda T: dcem.DCEM(n_iters=T, **PAPER),
    "dcem, full": lambda T: dcem.DCEM(n_iters=T, distribution=dcem.FullGaussian(**BOX)),
    "dcem, full, 50 samples": lambda T: dcem.DCEM(  # without bounds, as CMA-ES
        n_samples=50, n_iters=T, distribution=FREE
    ),
    "cmaes": lambda T: dcem.CMAES(n_iters=T, distribution=FREE),
    "cmaes, tau=0": lambda T: dcem.CMAES(n_iters=T, tau=0, distribution=FREE),
    "cmaes, bounds": lambda T: dcem.CMAES(n_iters=T, distribution=dcem.FullGaussian(**BOX)),
    "cmaes, 20 samples, stopping": lambda T: dcem.CMAES(  # as pycma does, where nothing moves any more
        n_samples=20, n_iters=T, tau=0, stop_below=1e-9, distribution=FREE
    ),
    "cmaes, 20 mirrored samples, stopping": lambda T: dcem.CMAES(
        n_samples=20, n_iters=T, tau=0, stop_below=1e-9, noise=Antithetic(), distribution=FREE
    ),
    "cmaes, separable": lambda T: dcem.CMAES(n_iters=T, distribution=dcem.Gaussian(SIGMA)),
    "ipop": lambda T: dcem.IPOP(n_iters=T, tau=0, distribution=FREE),
}


def solve_all(optimiser: str, problems: list[tuple[int, int]], dimension: int, budget: int, seed: int) -> Any:
    """All (function, instance) in one call."""
    fs = [Counted(function, dimension, instance, budget) for function, instance in problems]
    make = SOLVERS[optimiser]
    iterations = -(-budget // make(1).samples(dimension))  # the budget may cut the last batch short
    # In double precision: the last targets are 1e-8 above optima of a hundred and more.
    x0 = torch.zeros(len(fs), dimension, dtype=torch.float64)

    def values(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.stack([f(rows) for f, rows in zip(fs, x.numpy(), strict=True)]))

    with many.Timer() as timer, torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        dcem.minimize(values, make(iterations), x0, generator=generator, cost=False)
    return {"runs": [f.report(timer.seconds / len(fs)) for f in fs]}


def solve_many(
    optimiser: str, problem: str, problems: int, solved: int, dimension: int, budget: int, seed: int
) -> Any:
    """All problems in one call."""
    f = many.PROBLEMS[problem](problems, dimension, seed, torch.from_numpy)
    best = torch.full((problems,), torch.inf, dtype=torch.float64)

    def watched(x: torch.Tensor) -> torch.Tensor:
        values = f(x)
        torch.minimum(best, values.amin(-1), out=best)
        return values

    make = SOLVERS[optimiser]
    solver = make(budget // make(1).samples(dimension))
    x0 = torch.zeros(problems, dimension, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with many.Timer() as timer, torch.no_grad():
        dcem.minimize(watched, solver, x0, generator=generator, cost=False)
    return {"seconds": timer.seconds, "best": best.tolist()}


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    serve(SOLVERS, ("torch", "dcem"), solve_all=solve_all, many=solve_many)

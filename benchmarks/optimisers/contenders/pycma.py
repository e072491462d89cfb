"""pycma: CMA-ES with its defaults, asked and told, to where its own criteria end it; and with restarts."""

from typing import Any

import cma
import numpy as np

import many
from bbob import BOUND, SIGMA, Objective, Optimiser, serve


def search(f: Objective, dimension: int, budget: int, seed: int, **options: Any) -> None:
    options |= {"maxfevals": budget, "seed": seed + 1, "verbose": -9}  # its seed 0 is the time of day
    strategy = cma.CMAEvolutionStrategy(np.zeros(dimension), SIGMA, options)
    while not strategy.stop():
        points = strategy.ask()
        strategy.tell(points, f(np.stack(points)).tolist())


def bounded(f: Objective, dimension: int, budget: int, seed: int) -> None:
    search(f, dimension, budget, seed, bounds=[-BOUND, BOUND])


def restarted(f: Objective, dimension: int, budget: int, seed: int) -> None:
    """IPOP: until the objective says that the budget is spent."""
    for run in range(10):
        search(f, dimension, budget, seed + 100 * run, popsize_factor=2**run)


OPTIMISERS: dict[str, Optimiser] = {
    "pycma CMA-ES": search,
    "pycma CMA-ES, bounds": bounded,
    "pycma IPOP": restarted,
}


if __name__ == "__main__":
    serve(OPTIMISERS, ("cma",), many=many.one_by_one(OPTIMISERS))

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


def solve_many(
    optimiser: str, problem: str, problems: int, solved: int, dimension: int, budget: int, seed: int
) -> Any:
    """The first `solved` of the problems, one after the other."""
    f = many.PROBLEMS[problem](problems, dimension, seed)
    best = [np.inf] * solved
    with many.Timer() as timer:
        for row in range(solved):
            one = f.row(row)

            def watched(x: np.ndarray, row: int = row, one: many.Many = one) -> np.ndarray:
                values = one(x)
                best[row] = min(best[row], values.min())
                return values

            OPTIMISERS[optimiser](watched, dimension, budget, seed + row)
    return {"seconds": timer.seconds, "best": best}


if __name__ == "__main__":
    serve(OPTIMISERS, ("cma",), many=solve_many)

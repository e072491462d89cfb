"""evotorch: its cross-entropy method and SNES, without bounds, which these algorithms do not keep."""

import os
from collections.abc import Callable
from typing import Any

import torch
from evotorch import Problem
from evotorch.algorithms import CEM, SNES
from evotorch.tools.misc import set_default_logger_config

import many
from bbob import SIGMA, Objective, Optimiser, serve


def optimiser(make: Callable[[Problem], Any]) -> Optimiser:
    def search(f: Objective, dimension: int, budget: int, seed: int) -> None:
        problem = Problem(
            "min",
            lambda x: torch.from_numpy(f(x.numpy())),
            solution_length=dimension,
            initial_bounds=(0, 0),
            dtype=torch.float64,
            vectorized=True,
            seed=seed,
        )
        algorithm = make(problem)
        while True:  # until the objective says that the budget is spent
            algorithm.step()

    return search


START = {"stdev_init": SIGMA, "center_init": 0.0}
OPTIMISERS = {
    "evotorch CEM": optimiser(lambda p: CEM(p, popsize=100, parenthood_ratio=0.1, **START)),
    "evotorch CEM, half": optimiser(lambda p: CEM(p, popsize=100, parenthood_ratio=0.5, **START)),
    "evotorch SNES": optimiser(lambda p: SNES(p, **START)),
}


if __name__ == "__main__":
    set_default_logger_config(logger_level=40, override=True)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    serve(OPTIMISERS, ("torch", "evotorch"), many=many.one_by_one(OPTIMISERS))

"""scipy: differential evolution with its defaults, but to the end of the budget and without polishing."""

import numpy as np
from scipy.optimize import differential_evolution

import many
from bbob import BOUND, Objective, serve


def evolve(f: Objective, dimension: int, budget: int, seed: int) -> None:
    differential_evolution(
        lambda x: f(x.T),  # its points are columns
        bounds=[(-BOUND, BOUND)] * dimension,
        x0=np.zeros(dimension),
        maxiter=budget,
        tol=0,
        polish=False,
        vectorized=True,
        updating="deferred",
        rng=np.random.default_rng(seed),
    )


if __name__ == "__main__":
    optimisers = {"scipy DE": evolve}
    serve(optimisers, ("scipy",), many=many.one_by_one(optimisers))

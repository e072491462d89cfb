"""nevergrad: NGOpt, which picks an algorithm for the dimension and the budget; asked and told one by one."""

import warnings

import nevergrad
import numpy as np

import many
from bbob import BOUND, Objective, serve


def ngopt(f: Objective, dimension: int, budget: int, seed: int) -> None:
    warnings.simplefilter("ignore")
    domain = nevergrad.p.Array(init=np.zeros(dimension)).set_bounds(-BOUND, BOUND)
    domain.random_state.seed(seed)
    optimiser = nevergrad.optimizers.NGOpt(parametrization=domain, budget=budget)
    for _ in range(budget):
        candidate = optimiser.ask()
        optimiser.tell(candidate, f(candidate.value[None]).item())


if __name__ == "__main__":
    optimisers = {"nevergrad NGOpt": ngopt}
    serve(optimisers, ("nevergrad",), many=many.one_by_one(optimisers))

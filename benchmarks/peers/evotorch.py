"""evotorch: the cross-entropy method of its functional interface, the one that takes batches of problems."""

from evotorch.algorithms.functional import cem, cem_ask, cem_tell
from torch import Tensor

import problems
from measure import Job, serve


def hard(problem: problems.Search) -> Job:
    def forward() -> Tensor:
        state = cem(
            center_init=problem.x0,
            parenthood_ratio=problem.n_elite / problem.n_samples,
            objective_sense="min",
            stdev_init=problem.sigma,
        )
        for _ in range(problem.n_iters):
            X = cem_ask(state, popsize=problem.n_samples)
            state = cem_tell(state, X, problem.cost(X))
        return state.center

    return Job(forward, problem.parameters)


if __name__ == "__main__":
    serve({"hard": hard}, packages=("evotorch",))

"""One optimiser on one BBOB function: the part that runs inside every contender's environment.

A module of `contenders/` ends with `serve(optimisers, packages)`. An optimiser is a function
`(f, dimension, budget, seed)` that starts at 0 and calls `f` on batches, (N, n) to (N,), until it has enough
or `f` raises. What it returns is ignored: the points it asked for are what counts.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cocoex import BareProblem

from scoring import evaluations_to_targets, share
from serving import Reply, answer_requests, versions

BOUND = 5.0
SIGMA = 2.0  # the first standard deviation of every contender that has one

Objective = Callable[[np.ndarray], np.ndarray]
Optimiser = Callable[[Objective, int, int, int], Any]


class BudgetSpentError(Exception):
    """Raised by the objective when an optimiser asks for more than its budget."""


class Counted:
    """A BBOB function that counts evaluations, and notes the best value and when each target was reached."""

    def __init__(self, function: int, dimension: int, instance: int, budget: int):
        self._problem = BareProblem("bbob", function, dimension, instance)
        self._optimum, self._budget = self._problem.best_value(), budget
        self.evaluations, self.best, self.reached = 0, np.inf, list[int]()

    def __call__(self, x: np.ndarray) -> np.ndarray:
        left = self._budget - self.evaluations
        if left <= 0:
            raise BudgetSpentError
        values = np.asarray(self._problem(np.array(x, dtype=float, order="C")))  # a copy: it must be writable
        distances = values[:left] - self._optimum  # the rest of the batch does not count
        evaluations_to_targets(distances, self.evaluations, self.reached)
        self.evaluations += len(distances)
        self.best = min(self.best, distances.min())
        return values

    def report(self, seconds: float) -> Reply:
        return {
            "evaluations": self.evaluations,
            "share": share(self.reached),
            "distance": self.best,
            "seconds": seconds,
            "reached": self.reached,
        }


def solve(
    optimiser: Optimiser, function: int, dimension: int, instance: int, budget: int, seed: int
) -> Reply:
    f = Counted(function, dimension, instance, budget)
    start = time.perf_counter()
    with contextlib.suppress(BudgetSpentError):
        optimiser(f, dimension, budget, seed)
    return f.report(time.perf_counter() - start)


def serve(optimisers: dict[str, Any], packages: tuple[str, ...], **more: Callable[..., Reply]) -> None:
    """Answer requests: "facts", "solve", or what else this contender offers.

    One that offers "solve_all" gets all functions and instances of a dimension at once.
    """

    def answer(do: str, contender: None, **settings: Any) -> Reply:
        if do == "facts":
            return {
                "optimisers": list(optimisers),
                "offers": list(more),
                "versions": versions(("numpy", "coco-experiment", *packages)),
            }
        if do == "solve":
            return solve(optimisers[settings.pop("optimiser")], **settings)
        return more[do](**settings)

    answer_requests(answer)

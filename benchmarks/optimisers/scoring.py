"""What counts: BBOB's groups of functions, the targets, and a run's share of them."""

import math
from collections.abc import Sequence

GROUPS = {
    "separable": range(1, 6),
    "moderate": range(6, 10),
    "ill-conditioned": range(10, 15),
    "multimodal": range(15, 20),
    "weak structure": range(20, 25),
}
FUNCTIONS = range(1, 25)
TARGETS = tuple(10 ** (2 - i / 5) for i in range(51))  # distances to the optimal value, 10² to 10⁻⁸


def group_of(function: int) -> str:
    return next(name for name, functions in GROUPS.items() if function in functions)


def evaluations_to_targets(distances: Sequence[float], before: int, reached: list[int]) -> None:
    """Append to `reached`, for every further target met by a batch, the count of evaluations at which it was.

    `distances` are the values of a batch minus the optimum, `before` the evaluations before this batch.
    """
    if len(reached) == len(TARGETS) or min(distances, default=math.inf) > TARGETS[len(reached)]:
        return
    for count, distance in enumerate(distances, start=before + 1):
        while len(reached) < len(TARGETS) and distance <= TARGETS[len(reached)]:
            reached.append(count)


def share(reached: Sequence[int]) -> float:
    """Of the targets, how many were reached."""
    return len(reached) / len(TARGETS)


def curve(runs: Sequence[Sequence[int]], budgets: Sequence[float]) -> list[float]:
    """The share of all (run, target) pairs reached within each of these numbers of evaluations."""
    counts = [count for reached in runs for count in reached]
    return [sum(count <= budget for count in counts) / (len(TARGETS) * len(runs)) for budget in budgets]

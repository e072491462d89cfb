"""What a solver must do, and the record of one iteration."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Generator, Tensor

# (x, influence) -> values: x (*B, N, n) are points to evaluate, the values are (*B, N), and
# influence(values) says how much each can move the result, for those who build a graph for only some;
# None where the solver needs the graph of all.
Influence = Callable[[Tensor], Tensor] | None
Evaluate = Callable[[Tensor, Influence], Tensor]


class Record(NamedTuple):
    """One iteration, as the trace keeps it and a callback sees it."""

    iteration: int
    samples: Tensor  # (*B, N, n)
    values: Tensor  # (*B, N), as the objective returned them
    weights: Tensor | None  # (*B, N); None for solvers that do not weight
    mean: Tensor  # (*B, n), after the update
    sigma: Tensor | None  # (*B, n), after the update

    @property
    def effective_samples(self) -> Tensor | None:
        """(Σw)² / Σw², (*B,): how many samples the update really rests on. At τ = 1 it is far above k."""
        w = self.weights
        return None if w is None else w.sum(-1).square() / w.square().sum(-1)

    @property
    def n_bad(self) -> Tensor:
        """How many values were not finite, (*B,)."""
        return (~self.values.isfinite()).sum(-1)


class Solver(Protocol):
    """A frozen record of settings. A solve is init, then n_iters times (draw, step), then result.

    The state is a NamedTuple of tensors (or None, or tuples of them). Noise is drawn outside the step, so
    that a step, and with it a whole solve, is a deterministic function of its noise.
    """

    @property
    def n_iters(self) -> int: ...

    def init(self, x0: Tensor) -> Any:
        """The first state, from the first mean x0 (*B, n)."""

    def draw(self, x0: Tensor, t: int, generator: Generator | None) -> Tensor | None:
        """The noise of iteration t, for a problem shaped like x0."""

    def step(self, evaluate: Evaluate, state: Any, noise: Tensor | None, t: int) -> tuple[Any, Record]:
        """One iteration."""

    def result(self, state: Any) -> Tensor:
        """The answer, (*B, n)."""

    def moving(self, state: Any) -> Tensor | None:
        """Which rows (*B,) are still moving; None where the solver never stops early."""

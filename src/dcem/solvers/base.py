"""What a solver must do, and the record of one iteration."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

from torch import Generator, Tensor

from dcem._checks import Settings
from dcem.distributions.box import Box
from dcem.distributions.moments import effective_samples

# (x, influence) -> values: x (*B, N, n) are points to evaluate, the values are (*B, N), and
# influence(values) says how much each can move the result, for backward modes that build a graph for only
# some samples; None if the solver needs the graph of all.
Influence = Callable[[Tensor], Tensor] | None
Evaluate = Callable[[Tensor, Influence], Tensor]


class Record(NamedTuple):
    """One iteration, as the trace keeps it and a callback sees it."""

    iteration: int
    samples: Tensor  # (*B, N, n)
    values: Tensor  # (*B, N), as the objective returned them
    weights: Tensor | None  # (*B, N), those of CMAES also negative; None for solvers that do not weight
    mean: Tensor  # (*B, n), after the update
    phi: Any  # the distribution's state after the update; None for solvers that do not sample
    violation: Tensor | None = None  # (*B, N), of the constraint: 0 for feasible samples

    @property
    def sigma(self) -> Tensor | None:
        """Standard deviation of every dimension after the update, (*B, n)."""
        return None if self.phi is None else self.phi.sigma

    @property
    def effective_samples(self) -> Tensor | None:
        """(Σw)² / Σw², (*B,): the effective sample size of the update. At τ = 1 it is far above k."""
        return None if self.weights is None else effective_samples(self.weights.clamp_min(0.0)).squeeze(-1)

    @property
    def n_feasible(self) -> Tensor | None:
        """How many samples satisfy the constraint, (*B,)."""
        return None if self.violation is None else (self.violation == 0).sum(-1)

    @property
    def n_bad(self) -> Tensor:
        """How many values were not finite, (*B,)."""
        return (~self.values.isfinite()).sum(-1)


class Solver(Settings, ABC):
    """A frozen record of settings. A solve is init, then n_iters times (draw, step), then result.

    The state is a NamedTuple of tensors (or None, or tuples of them). Noise is drawn outside the step, so
    that a step, and with it a whole solve, is a deterministic function of its noise.

    Solvers are equal where their settings are, tensors by their values.
    """

    n_iters: int
    State: ClassVar[type]
    """The type of its states: `minimize` continues from one that is passed instead of a starting point."""

    @property
    def box(self) -> Box | None:
        """The bounds of the domain, where there are any: x0 must lie inside, and the result does."""
        return None

    def within(self, box: Box, steps: int = 1) -> Self:
        """The same solver inside `box`, which bounds each of ``steps`` parts of x, of equal size.

        A solver that does not support bounds is returned unchanged.
        """
        return self

    @abstractmethod
    def init(self, x0: Tensor) -> Any:
        """The first state, from the first mean x0 (*B, n)."""

    def resume(self, state: Any, f: Callable[[Tensor], Tensor]) -> Any:
        """A state to continue from with f, which may differ from the objective that the state came from.

        The state of the search is kept; anything that depends on the objective is evaluated again.
        """
        return state

    def propose(self, state: Any, x: Tensor) -> Any:
        """The state, with points x (*B, P, n) to evaluate among the samples of every iteration."""
        raise ValueError(f"minimize: proposals need a solver that samples, got {type(self).__name__}")

    def draw(self, x0: Tensor, t: int, generator: Generator | None) -> Tensor | None:
        """The noise of iteration t, for a problem shaped like x0."""
        return None

    @abstractmethod
    def step(self, evaluate: Evaluate, state: Any, noise: Tensor | None, t: int) -> tuple[Any, Record]:
        """One iteration. If it evaluates more than once, the samples of its record come first."""

    @abstractmethod
    def result(self, state: Any) -> Tensor:
        """The answer, (*B, n)."""

    def had_values(self, state: Any) -> Tensor:
        """Which rows (*B,) had a finite value, as far as the last state shows: for compiled solves."""
        return self.result(state).isfinite().all(-1)

    @property
    def stationary(self) -> bool:
        """Is `step` the same in every iteration, whatever t? Then only one needs to be compiled."""
        return False

    def softness(self, t: int) -> float | Tensor | None:
        """How softly samples are chosen by their values in iteration t: 0 means by rank only.

        A number, or a tensor over the rows (*B,). None if the solver does not choose among samples, and so
        does not support constraints.
        """
        return 0.0

    def moving(self, state: Any) -> Tensor | None:
        """Which rows (*B,) are still moving; None where the solver never stops early."""
        return None

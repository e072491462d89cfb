"""How to differentiate a solve: what it costs, and what it leaves out.

| mode          | gradient      | memory                    | time of the backward                       |
| ------------- | ------------- | ------------------------- | ------------------------------------------ |
| Unroll        | exact         | all T iterations          | one backward                               |
| Checkpoint    | exact         | one iteration             | one more forward                           |
| Truncate(n)   | last n of T   | n iterations              | n / T                                      |
| Prune(share)  | main samples  | that share of the samples | that share, and a second forward of it     |
| Implicit()    | at a minimum  | one evaluation            | conjugate gradients on the Hessian of f    |
| Detach        | none to x     | none                      | none                                       |

The forward pass is the same in all of them, bit for bit.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dcem._checks import all_finite, can_look, check_count
from dcem._graph import zero_with_graph
from dcem._implicit import implicit
from dcem.solvers.base import Influence, Solver

Objective = Callable[[Tensor], Tensor]
Step = Callable[[Any, Tensor | None], Any]


class Backward:
    """A way to differentiate: the hooks that `minimize` calls, which by default unroll."""

    constrained: ClassVar[bool] = True
    """Does it support constraints?"""
    traceable: ClassVar[bool] = True
    """Can torch.compile trace `finish`?"""

    def check(self, solver: Solver, state: Any) -> None:
        """Raise ValueError if this solver, starting from this state, cannot be differentiated in this way."""

    def wrap(self, step: Step, t: int, n_iters: int) -> Step:
        """The step to run as iteration t of n_iters."""
        return step

    def evaluate(self, f: Objective, x: Tensor, influence: Influence) -> Tensor:
        """The objective's values at x (*B, N, n), with the graph that the backward is to use."""
        values = f(x)
        if not values.requires_grad or not can_look(values) or all_finite(values):
            return values
        # Even a zero gradient turns into NaN inside f at points where its value is not finite. Evaluate again
        # with stand-ins at those points, so that the graph never sees them.
        good = values.isfinite()
        best = torch.where(good, values, torch.inf).argmin(-1, keepdim=True)
        stand_in = x.gather(-2, best.unsqueeze(-1).expand(*best.shape, x.shape[-1]))
        again = f(torch.where(good.unsqueeze(-1), x, stand_in.detach()))
        return values.detach() + torch.where(good, zero_with_graph(again), 0.0)

    def finish(self, f: Objective, x: Tensor, solver: Solver) -> Tensor:
        """The answer x (*B, n), with the graph that the backward is to use."""
        return x

    def answer(self, f: Objective, x: Tensor, solver: Solver, cost: bool) -> tuple[Tensor, Tensor | None]:
        """The finished x (*B, n) and, with `cost`, the value of f there, (*B,)."""
        x = self.finish(f, x, solver)
        return x, f(x.unsqueeze(-2)).squeeze(-1) if cost else None


@dataclass(frozen=True)
class Unroll(Backward):
    """Differentiate everything."""


@dataclass(frozen=True)
class Checkpoint(Backward):
    """Differentiate everything, keeping the graph of one iteration at a time: iterations are recomputed."""

    def wrap(self, step: Step, t: int, n_iters: int) -> Step:
        if not torch.is_grad_enabled():
            return step
        # A generator's state cannot be read while a CUDA graph is recorded; noise is drawn outside the step.
        keep_random = not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
        return lambda state, noise: checkpoint(
            step, state, noise, use_reentrant=False, preserve_rng_state=keep_random
        )


@dataclass(frozen=True)
class Truncate(Backward):
    """Differentiate the last n iterations; the earlier ones leave no graph."""

    n: int

    def __post_init__(self) -> None:
        check_count("Truncate: n", self.n)

    def check(self, solver: Solver, state: Any) -> None:
        if self.n < solver.n_iters and solver.moving(state) is not None:
            raise ValueError(
                "minimize: backward must not be Truncate for a solver that may stop early: it is not known "
                f"which iterations will be the last, got {self!r}"
            )

    def wrap(self, step: Step, t: int, n_iters: int) -> Step:
        return step if t >= n_iters - self.n else torch.no_grad()(step)


@dataclass(frozen=True)
class Prune(Backward):
    """Evaluate every sample, but backpropagate through the objective only for the most influential.

    The paper's suggestion to "delete some of the low-influence trajectories": all samples are evaluated
    without a graph, then the fraction with the largest influence is evaluated again with one.
    """

    fraction: float

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"Prune: fraction must satisfy 0 < fraction <= 1, got {self.fraction}")

    def evaluate(self, f: Objective, x: Tensor, influence: Influence) -> Tensor:
        if influence is None or not torch.is_grad_enabled():
            return super().evaluate(f, x, influence)
        with torch.no_grad():
            values = f(x)
            n_kept = math.ceil(self.fraction * x.shape[-2])
            kept = torch.nan_to_num(influence(values), nan=0.0).topk(n_kept, dim=-1).indices
            # A value that is not finite has no influence, but may be kept if few other values have any.
            good = values.gather(-1, kept).isfinite()
            kept = torch.where(good, kept, kept[..., :1])
        index = kept.unsqueeze(-1).expand(*kept.shape, x.shape[-1])
        again = torch.where(good, f(x.gather(-2, index)), 0.0)
        # Solvers do not see a shift of all values, so the gradients of a row's values sum to zero. Dropping
        # some breaks that, and the error would accumulate in whatever all samples share: restore it.
        again = again - again.sum(-1, keepdim=True) / good.sum(-1, keepdim=True).clamp_min(1)
        graph = torch.where(good, zero_with_graph(again), 0.0)
        return values + torch.zeros_like(values).scatter(-1, kept, graph)


@dataclass(frozen=True)
class Implicit(Backward):
    """Differentiate the solution by its optimality condition: ∇f(x̂, θ) = 0, so dx̂/dθ = −H⁻¹ ∂∇f/∂θ.

    The search builds no graph. The backward pass solves a linear system with the Hessian H of f at x̂, by
    conjugate gradients on Hessian-vector products, so f must be twice differentiable there. Coordinates on a
    bound are treated as fixed. The gradient is correct if x̂ is a minimum, whatever the solver's settings:
    use it for searches that converge, and unrolling for short ones.

    Args:
        damping: use H + damping · I, for a Hessian that is (nearly) singular; this shrinks the gradient in
            flat directions. Without damping, a Hessian that is not positive definite raises an error.
        n_iters: maximum number of conjugate-gradient steps; None for slightly more than the dimension of x.
        tolerance: stop when the residual is this small relative to the incoming gradient; None for the
            precision of the dtype.
    """

    constrained = False
    traceable = False

    damping: float = 0.0
    n_iters: int | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if not self.damping >= 0:
            raise ValueError(f"Implicit: damping must be >= 0, got {self.damping}")
        if self.n_iters is not None and not self.n_iters >= 1:
            raise ValueError(f"Implicit: n_iters must be at least 1 or None, got {self.n_iters}")

    def wrap(self, step: Step, t: int, n_iters: int) -> Step:
        return torch.no_grad()(step)

    def finish(self, f: Objective, x: Tensor, solver: Solver) -> Tensor:
        return implicit(f, x.detach(), solver.box, self.damping, self.n_iters, self.tolerance)


@dataclass(frozen=True)
class Detach(Backward):
    """Differentiate nothing: x is returned as a constant. The cost at x still depends on f.

    Minimising the cost is then min-differentiation, the paper's τ = 0 case.
    """

    def wrap(self, step: Step, t: int, n_iters: int) -> Step:
        return torch.no_grad()(step)

    def finish(self, f: Objective, x: Tensor, solver: Solver) -> Tensor:
        return x.detach()

"""The optimisation loop that all solvers share."""

from __future__ import annotations  # torch 2.9 cannot trace those of inner functions

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from dcem._checks import all_finite, can_look, check_callable, name_row
from dcem._compile import chosen
from dcem._constraint import Constraint, Incumbent, scores
from dcem._learned import resolved
from dcem._variables import Variables
from dcem.backward import Backward, Unroll
from dcem.solvers import Record, Solver
from dcem.solvers.base import Influence


class Solution(NamedTuple):
    """What `minimize` found."""

    x: Any  # (*B, n), or in the structure of x0
    cost: Tensor | None  # (*B,), f at x; None when not requested
    state: Any  # the solver's last state; pass it as x0 to continue
    trace: tuple[Record, ...] | None  # one record per iteration, when requested
    violation: Tensor | None = None  # (*B,), of the constraint at x: 0 where x is feasible


def minimize(
    f: Callable[[Any], Tensor],
    solver: Solver,
    x0: Any,
    *,
    constraint: Callable[[Any], Tensor] | None = None,
    event_dims: int = 1,
    proposals: Any = None,
    backward: Backward = Unroll(),  # noqa: B008 (immutable)
    generator: Generator | None = None,
    noise: Sequence[Tensor | None] | Tensor | None = None,
    trace: bool = False,
    callback: Callable[[Record], None] | None = None,
    cost: bool = True,
    check: bool | None = None,
) -> Solution:
    """Minimise f; gradients of the solution reach everything that f depends on.

    Args:
        f: the objective, (*B, N, n) -> (*B, N): one value for each of N candidates. Any callable; everything
            it closes over receives gradients.
        solver: `DCEM`, `CMAES`, `MPPI`, `GradientDescent` or your own.
        x0: where to start, (*B, n), with any leading dimensions; dtype and device follow it. Or a nesting of
            dicts, tuples and lists of tensors (B, ...), each with the batch first: f then takes candidates
            of that structure, (B, N, ...). Or the `state` of an earlier solution, to continue from there,
            possibly with another objective.
        constraint: g, (*B, N, n) -> (*B, N, c), for the constraint g(x) <= 0. Feasible samples rank before
            infeasible ones, which rank by Σ max(g, 0). At a temperature above 0 the ranking is soft, and
            gradients reach everything that g closes over. The solution is feasible if any sample was: an
            infeasible one is replaced by the best feasible sample.
        event_dims: number of trailing dimensions of a tensor x0 that form one point: 2 for matrices.
        proposals: points to try, (*B, P, n), or in the structure of x0 with a dimension P after the batch.
            They compete with the samples in every iteration, as P additional candidates; those outside the
            bounds are clamped. Gradients reach them.
        backward: how to differentiate, see `dcem.backward`.
        generator: the only source of randomness; None for torch's global generator.
        noise: the noise of every iteration, instead of drawing it: a tensor (T, *B, N, n) or a sequence of T
            tensors. The solve is then a deterministic function.
        trace: keep a record of every iteration in the solution.
        callback: called with the record of every iteration.
        cost: evaluate f once more, at the solution.
        check: raise an error if x0 is outside the bounds or a row has no finite value. None checks on the CPU
            only. On other devices such a row returns NaN; True enables the check there too, which
            synchronises with the device in every iteration.

    >>> target = torch.tensor([0.3, -0.2], requires_grad=True)
    >>> sol = minimize(lambda x: (x - target).square().sum(-1), DCEM(n_iters=20), torch.zeros(2))
    >>> torch.allclose(sol.x, target, atol=0.1)
    True
    >>> gradient = torch.autograd.grad(sol.x.sum(), target)
    """
    if not isinstance(solver, Solver):
        raise TypeError(f"minimize: solver must be a solver such as DCEM(), got {solver!r}")
    solver = resolved(solver)
    if not isinstance(backward, Backward):
        raise TypeError(f"minimize: backward must be a mode such as Unroll(), got {backward!r}")
    check_callable("minimize: f", f)
    if constraint is not None:
        _check_constraint(constraint, solver, backward)
    resumed = _is_state(x0)
    if resumed:
        _check_state(solver, x0)
        start = solver.result(x0)
        variables = Variables(start, event_dims=1)
    else:
        variables = Variables(x0, event_dims)
        f, start = variables.objective(f), variables.flat(x0)
    proposed = None if proposals is None else variables.candidates(proposals).to(start)
    g = None if constraint is None else variables.objective(constraint)
    device = start.device.type
    own_precision: Any = nullcontext()
    if device != "meta" and torch.is_autocast_enabled(device):
        # The objective keeps its autocast precision; the solver's own computations use that of x0.
        as_asked = torch.autocast(device, torch.get_autocast_dtype(device))
        own_precision = torch.autocast(device, enabled=False)
        f, g = as_asked(f), None if g is None else as_asked(g)
    given = _Objective(f), None if g is None else Constraint(g), solver, start, x0 if resumed else None
    with own_precision:
        sol = _minimize(*given, proposed, backward, generator, noise, trace, callback, cost, check)
    return sol._replace(x=variables.shaped(sol.x))


def _minimize(
    f: _Objective,
    constraint: Constraint | None,
    solver: Solver,
    x0: Tensor,
    state: Any,
    proposals: Tensor | None,
    backward: Backward,
    generator: Generator | None,
    noise: Sequence[Tensor | None] | Tensor | None,
    trace: bool,
    callback: Callable[[Record], None] | None,
    cost: bool,
    check: bool | None,
) -> Solution:
    """`minimize` for x0 (*B, n), which is the solution so far if a state is continued."""
    if state is None:
        state = solver.init(x0)
        _check_start(solver, x0, check)
    else:
        state = solver.resume(state, f if constraint is None else constraint.infinite_outside(f))
    if proposals is not None:
        state = solver.propose(state, proposals)
        _check_proposals(getattr(state, "proposals", None), check)
    if generator is not None and not hasattr(generator, "device"):
        raise TypeError(f"minimize: generator must be a torch.Generator, got {generator!r}")
    if generator is not None and generator.device.type != x0.device.type:
        raise ValueError(
            f"minimize: generator must be on {x0.device}, where x0 is, got one on {generator.device}"
        )
    _check_noise(noise, solver.n_iters, x0)
    backward.check(solver, state)
    records: list[Record] = []
    incumbent: Incumbent | None = None
    moving: Tensor | None = None
    program = chosen(x0) if callback is None and constraint is None else None
    if program is not None:
        if noise is None:
            noise = [solver.draw(x0, t, generator) for t in range(solver.n_iters)]
        found = program.run(f, solver, backward, state, noise, trace, cost)
        if found is not None:
            state, records, (x, value) = found
            if check is not False:
                _check_had_values(solver.had_values(state))
            return Solution(x, value, state, tuple(records) if trace else None)
    for t in range(solver.n_iters):
        epsilon = solver.draw(x0, t, generator) if noise is None else noise[t]

        def step(state: Any, epsilon: Tensor | None, t: int = t) -> tuple[Any, Record]:
            seen: dict[str, Any] = {}
            softness = None if constraint is None else solver.softness(t)

            def evaluate(x: Tensor, influence: Influence) -> Tensor:
                if constraint is None or softness is None:
                    ranked = backward.evaluate(f, x, influence)
                else:
                    violation = backward.evaluate(constraint, x, None)

                    def rank(values: Tensor) -> Tensor:
                        return scores(values, violation, softness)

                    on_rank = None if influence is None else (lambda values: influence(rank(values)))
                    values = backward.evaluate(f, x, on_rank)
                    if not seen:  # the first points are the samples; a solver may ask for more
                        seen.update(values=values, violation=violation)
                    ranked = rank(values)
                if _wanted(check, ranked):
                    _check_values(ranked, t)
                return ranked

            state, record = solver.step(evaluate, state, epsilon, t)
            return state, record._replace(**seen) if seen else record

        state, record = backward.wrap(step, t, solver.n_iters)(state, epsilon)
        if trace:
            records.append(record)
        if callback is not None:
            callback(record)
        if constraint is not None:
            best = Incumbent.of(record)
            incumbent = best if incumbent is None else incumbent.or_better(best, moving)
        moving = solver.moving(state)
        if moving is not None and not moving.any():
            break
    x, violation = solver.result(state), None
    if constraint is not None and incumbent is not None:
        x, violation = incumbent.in_place_of(x, constraint)
    x, value = backward.answer(f, x, solver, cost)
    return Solution(x, value, state, tuple(records) if trace else None, violation)


def fixed_noise(solver: Solver, x0: Tensor, seed: int) -> list[Tensor | None]:
    """Noise for a solve from x0 (*B, n) that is the same in every call and for every row."""
    generator = Generator(x0.device).manual_seed(seed)
    row = x0.new_zeros(x0.shape[-1:])
    drawn = [solver.draw(row, t, generator) for t in range(solver.n_iters)]
    return [None if e is None else e.expand(*x0.shape[:-1], *e.shape) for e in drawn]


class _Objective:
    """The user's f, with checks of its shape and that it does not modify the points."""

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        self.f = f

    def __call__(self, x: Tensor) -> Tensor:
        looking = can_look(x) and not x.is_inference()
        version = x._version if looking else 0
        values = self.f(x)
        if not isinstance(values, Tensor):
            raise TypeError(f"minimize: f must return a tensor, got {type(values).__name__}")
        if values.shape != x.shape[:-1]:
            raise ValueError(
                f"minimize: f must return one value per sample, shape {tuple(x.shape[:-1])} for samples of "
                f"shape {tuple(x.shape)}, got shape {tuple(values.shape)}"
            )
        if values.is_complex():
            raise TypeError(f"minimize: f must return real numbers, got {values.dtype}")
        if looking and x._version != version:
            raise ValueError("minimize: f must not change its input in place; work on x.clone()")
        return values if values.dtype == x.dtype else values.to(x.dtype)


def _check_constraint(constraint: Any, solver: Solver, backward: Backward) -> None:
    check_callable("minimize: constraint", constraint)
    if solver.softness(0) is None:
        raise ValueError(
            "minimize: constraint must be left out for a solver that does not choose among samples, "
            f"got {type(solver).__name__}; DCEM and MPPI keep one"
        )
    if not backward.constrained:
        raise ValueError(
            f"minimize: constraint must be left out with {backward!r}, whose condition for a minimum has none"
        )


def _is_state(x0: Any) -> bool:
    """Is it the state of a solver, not variables? Both may be named tuples."""
    return not isinstance(x0, Tensor) and any(isinstance(x0, kind) for kind in _state_types(Solver))


def _state_types(solver: type) -> set[type]:
    own = {solver.State} if hasattr(solver, "State") else set()
    return own.union(*map(_state_types, solver.__subclasses__()))


def _check_state(solver: Solver, state: Any) -> None:
    if not isinstance(state, solver.State):
        raise ValueError(
            f"minimize: x0 must be a state of {type(solver).__name__}, of type {solver.State.__name__}, "
            f"got one of type {type(state).__name__}"
        )


def _wanted(check: bool | None, x: Tensor) -> bool:
    """Are values of x to be checked? Where nothing is said, only if reading them is free."""
    return can_look(x) if check is None else check


def _check_start(solver: Solver, x0: Tensor, check: bool | None) -> None:
    box = solver.box
    if box is not None and _wanted(check, x0):
        inside = box.contains(x0.detach())
        if not inside.all():
            where = name_row(~inside)
            raise ValueError(f"minimize: x0 must lie within the bounds ({box.low}, {box.high}){where}")


def _check_proposals(points: Tensor | None, check: bool | None) -> None:
    """Points (*B, P, n), within the bounds: one that is not finite spoils the mean, even with weight 0."""
    if points is None or not _wanted(check, points):
        return
    good = points.isfinite().flatten(-2).all(-1)
    if not good.all():
        raise ValueError(f"minimize: proposals must be finite, got NaN or infinite ones{name_row(~good)}")


def _check_noise(noise: Sequence[Tensor | None] | Tensor | None, n_iters: int, x0: Tensor) -> None:
    if noise is None:
        return
    if len(noise) != n_iters:
        raise ValueError(f"minimize: noise must hold one tensor per iteration ({n_iters}), got {len(noise)}")
    *batch, n = x0.shape
    for epsilon in noise:
        if epsilon is not None and (epsilon.shape[:-2] != x0.shape[:-1] or epsilon.shape[-1] != n):
            expected = ", ".join([*map(str, batch), "N", str(n)])
            raise ValueError(
                f"minimize: noise must have shape ({expected}) in every iteration, for x0 of shape "
                f"{tuple(x0.shape)}, got {tuple(epsilon.shape)}"
            )


def _check_had_values(had: Tensor) -> None:
    """The check of a compiled solve, which does not read values on the way."""
    if not had.all():
        raise ValueError(
            f"minimize: f must have a finite value in every row, but there was an iteration with none"
            f"{name_row(~had)}"
        )


def _check_values(values: Tensor, t: int) -> None:
    if all_finite(values):
        return
    hopeless = ~values.isfinite().any(-1)
    if hopeless.any():
        raise ValueError(
            f"minimize: f must have a finite value in every row, but all {values.shape[-1]} are NaN or "
            f"infinite{name_row(hopeless)}, at iteration {t}"
        )

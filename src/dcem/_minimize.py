"""The one loop that serves every solver."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from dcem._checks import all_finite, can_look
from dcem.backward import Detach, Truncate, Unroll
from dcem.distributions.box import Box
from dcem.solvers import Record, Solver
from dcem.solvers.base import Influence


class Solution(NamedTuple):
    """What `minimize` found."""

    x: Tensor  # (*B, n)
    cost: Tensor | None  # (*B,), f at x; None when not asked for
    state: Any  # the solver's last state; pass it as x0 to go on from there
    trace: tuple[Record, ...] | None  # one record an iteration, when asked for


def minimize(
    f: Callable[[Tensor], Tensor],
    solver: Solver,
    x0: Tensor | Any,
    *,
    backward: Unroll = Unroll(),  # noqa: B008 (immutable)
    generator: Generator | None = None,
    noise: Sequence[Tensor | None] | Tensor | None = None,
    trace: bool = False,
    callback: Callable[[Record], None] | None = None,
    cost: bool = True,
    check: bool | None = None,
) -> Solution:
    """Minimise f, in a way that gradients pass through to whatever f depends on.

    Args:
        f: the objective, (*B, N, n) -> (*B, N): one value for each of N candidate points. Any callable;
            everything it closes over gets gradients.
        solver: `DCEM`, `GradientDescent`, `MPPI` or your own.
        x0: where to start, (*B, n), with any leading dimensions; dtype and device follow it. Or the `state`
            of an earlier solution, to go on from there.
        backward: how to differentiate, see `dcem.backward`.
        generator: the only source of randomness; None is torch's global one.
        noise: the noise of every iteration, in place of drawing it: a tensor (T, *B, N, n) or a sequence of
            T tensors. With it the solve is a deterministic function.
        trace: keep a record of every iteration in the solution.
        callback: called with the record of every iteration.
        cost: evaluate f once more, at the answer.
        check: raise when x0 is outside the bounds or a row has no finite value. None checks where looking is
            free, that is on the CPU; elsewhere such a row comes back as NaN unless True asks for the check,
            which waits for the device in every iteration.

    >>> target = torch.tensor([0.3, -0.2], requires_grad=True)
    >>> sol = minimize(lambda x: (x - target).square().sum(-1), DCEM(n_iters=20), torch.zeros(2))
    >>> torch.allclose(sol.x, target, atol=0.1)
    True
    >>> gradient = torch.autograd.grad(sol.x.sum(), target)
    """
    if isinstance(x0, Tensor) and torch.is_autocast_enabled(x0.device.type):
        # The objective keeps the precision asked for; what the solver makes of its values stays in x0's.
        device = x0.device.type
        f = torch.autocast(device, torch.get_autocast_dtype(device))(f)
        with torch.autocast(device, enabled=False):
            return minimize(
                f, solver, x0, backward=backward, generator=generator, noise=noise, trace=trace,
                callback=callback, cost=cost, check=check,
            )  # fmt: skip
    objective = _Objective(f)
    if isinstance(solver, type) or not hasattr(solver, "step"):
        raise TypeError(f"minimize: solver must be a solver such as DCEM(), got {solver!r}")
    if not isinstance(backward, Unroll):
        raise TypeError(f"minimize: backward must be a mode such as Unroll(), got {backward!r}")
    state, x0 = _first_state(solver, x0, check)
    if generator is not None and generator.device.type != x0.device.type:
        raise ValueError(
            f"minimize: generator must be on {x0.device}, where x0 is, got one on {generator.device}"
        )
    _check_noise(noise, solver.n_iters, x0)
    if isinstance(backward, Truncate) and backward.n < solver.n_iters and solver.moving(state) is not None:
        raise ValueError(
            f"minimize: backward must not be Truncate for a solver that may stop early, as nobody knows "
            f"which iterations will be the last, got {backward!r}"
        )
    records: list[Record] = []
    for t in range(solver.n_iters):
        epsilon = solver.draw(x0, t, generator) if noise is None else noise[t]

        def step(state: Any, epsilon: Tensor | None, t: int = t) -> tuple[Any, Record]:
            def evaluate(x: Tensor, influence: Influence) -> Tensor:
                values = backward.evaluate(objective, x, influence)
                if check or (check is None and can_look(values)):
                    _check_values(values, t)
                return values

            return solver.step(evaluate, state, epsilon, t)

        state, record = backward.wrap(step, t, solver.n_iters)(state, epsilon)
        if trace:
            records.append(record)
        if callback is not None:
            callback(record)
        moving = solver.moving(state)
        if moving is not None and not moving.any():
            break
    x = solver.result(state)
    box = _box(solver)
    if box is not None:
        x = box.hold(x)
    if isinstance(backward, Detach):
        x = x.detach()
    value = objective(x.unsqueeze(-2)).squeeze(-1) if cost else None
    return Solution(x, value, state, tuple(records) if trace else None)


class _Objective:
    """The user's f, its shape checked."""

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        if not callable(f):
            raise TypeError(f"minimize: f must be callable, got {type(f).__name__}")
        self.f = f

    def __call__(self, x: Tensor) -> Tensor:
        values = self.f(x)
        if not isinstance(values, Tensor):
            raise TypeError(f"minimize: f must return a tensor, got {type(values).__name__}")
        if values.shape != x.shape[:-1]:
            raise ValueError(
                f"minimize: f must return one value a sample, shape {tuple(x.shape[:-1])} for samples of "
                f"shape {tuple(x.shape)}, got shape {tuple(values.shape)}"
            )
        return values.to(x.dtype)


def _first_state(solver: Solver, x0: Tensor | Any, check: bool | None) -> tuple[Any, Tensor]:
    if not isinstance(x0, Tensor):
        if not isinstance(x0, tuple) or not hasattr(x0, "_fields"):
            raise TypeError(
                f"minimize: x0 must be a tensor or the state of a solution, got {type(x0).__name__}"
            )
        return x0, solver.result(x0)
    if not x0.is_floating_point() or x0.ndim == 0:
        raise ValueError(
            f"minimize: x0 must be a floating-point tensor of shape (*B, n), got {x0.dtype} of shape "
            f"{tuple(x0.shape)}"
        )
    state = solver.init(x0)
    box = _box(solver)
    if box is not None and (check or (check is None and can_look(x0))):
        inside = box.contains(x0.detach())
        if not inside.all():
            where = _name_row(~inside)
            raise ValueError(f"minimize: x0 must lie within the bounds ({box.low}, {box.high}){where}")
    return state, x0


def _box(solver: Solver) -> Box | None:
    return getattr(getattr(solver, "distribution", None), "box", None)


def _check_noise(noise: Sequence[Tensor | None] | Tensor | None, n_iters: int, x0: Tensor) -> None:
    if noise is None:
        return
    if len(noise) != n_iters:
        raise ValueError(f"minimize: noise must hold one tensor an iteration ({n_iters}), got {len(noise)}")
    *batch, n = x0.shape
    for epsilon in noise:
        if epsilon is not None and (epsilon.shape[:-2] != x0.shape[:-1] or epsilon.shape[-1] != n):
            expected = ", ".join([*map(str, batch), "N", str(n)])
            raise ValueError(
                f"minimize: noise must have shape ({expected}) in every iteration, for x0 of shape "
                f"{tuple(x0.shape)}, got {tuple(epsilon.shape)}"
            )


def _check_values(values: Tensor, t: int) -> None:
    if all_finite(values):
        return
    hopeless = ~values.isfinite().any(-1)
    if hopeless.any():
        raise ValueError(
            f"minimize: f must have a finite value in every row, but all {values.shape[-1]} are NaN or "
            f"infinite{_name_row(hopeless)}, at iteration {t}"
        )


def _name_row(wrong: Tensor) -> str:
    """' in row (2, 1)' for the first True of `wrong`, nothing where there is only one row."""
    if wrong.ndim == 0:
        return ""
    row = tuple(wrong.nonzero()[0].tolist())
    return f" in row {row[0] if len(row) == 1 else row}"

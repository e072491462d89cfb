"""A solve as one compiled program, on the CPU.

One iteration, including the objective, is traced and compiled, and the program contains it T times, followed
by the evaluation at the solution. Noise is drawn first, so that an uncompiled solve with the same generator
uses the same numbers.
"""

from __future__ import annotations  # torch 2.9 cannot trace those of inner functions

import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from dcem._checks import is_transformed
from dcem.backward import Backward
from dcem.solvers import Record, Solver

Objective = Callable[[Tensor], Tensor]
Answer = tuple[Tensor, Tensor | None]
_chosen: ContextVar[Program | None] = ContextVar("dcem_program", default=None)

# Random numbers of the objective come from torch's generator; what guards have checked is not checked again.
HOW: dict[str, Any] = {
    "options": {"fallback_random": True, "size_asserts": False, "alignment_asserts": False}
}


class Program:
    """Compiled iterations, for every shape and objective it is called with."""

    def __init__(self) -> None:
        self._compiled: Any = None
        self._alone: Any = None
        self._ways = [True, False]  # an iteration as a compiled region of its own, or all of them in sequence

    def __reduce__(self) -> tuple[type[Program], tuple[()]]:
        return Program, ()  # whoever unpickles it compiles again

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Run the solves inside with this program."""
        token = _chosen.set(self)
        try:
            yield
        finally:
            _chosen.reset(token)

    def alone(self, f: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """One objective, compiled by itself: for devices where solves run uncompiled."""
        if self._alone is None:
            self._alone = torch.compile(f, dynamic=False)
        return self._alone

    def run(
        self,
        f: Objective,
        solver: Solver,
        backward: Backward,
        state: Any,
        noise: Sequence[Tensor | None] | Tensor,
        trace: bool,
        cost: bool,
    ) -> tuple[Any, list[Record], Answer] | None:
        """The last state, the records, and the answer with its cost if requested.

        None, after a warning, if the objective cannot be compiled.
        """
        if self._compiled is None:
            # torch counts compiled versions per code object: with a copy, each program has its own count.
            own = types.FunctionType(_iterate.__code__.replace(), _iterate.__globals__, "iterate")
            self._compiled = torch.compile(own, fullgraph=True, **HOW)
        while self._ways:
            nested = self._ways[0] and solver.stationary and not trace
            try:
                with warnings.catch_warnings():  # the compiler's own: the objective does not run here
                    warnings.simplefilter("ignore")
                    last, records, answer = self._compiled(
                        f, solver, backward, state, tuple(noise), trace, cost, nested
                    )
            except Exception as error:  # any compiler error; an error of the objective is raised again later
                self._ways.pop(0)
                reason = " ".join(str(error).split())[:200]
            else:
                records = [record._replace(iteration=t) for t, record in enumerate(records)]
                return last, records, answer or backward.answer(f, solver.result(last), solver, cost)
            if not self._ways:
                message = f"dcem: solves run uncompiled, as torch cannot compile them: {reason}"
                warnings.warn(message, stacklevel=4)
        return None


def chosen(x0: Tensor) -> Program | None:
    """The program for a solve from x0, if any."""
    return None if is_transformed() or x0.device.type != "cpu" else _chosen.get()


def _iterate(
    f: Objective,
    solver: Solver,
    backward: Backward,
    state: Any,
    noise: tuple[Tensor | None, ...],
    trace: bool,
    cost: bool,
    nested: bool,
) -> tuple[Any, list[Record], Answer | None]:
    records: list[Record] = []
    # x0 may be a view of a tensor that the objective depends on, which a compiled region does not accept.
    state = pytree.tree_map_only(Tensor, Tensor.clone, state)
    for t, epsilon in enumerate(noise):

        def step(state: Any, epsilon: Tensor | None, t: int = t) -> tuple[Any, Record | None]:
            if not nested:
                return solver.step(partial(backward.evaluate, f), state, epsilon, t)
            leaves, structure = pytree.tree_flatten(state)
            found = _region(f, solver, backward, structure, epsilon, *leaves)
            return pytree.tree_unflatten(found, structure), None

        state, record = backward.wrap(step, t, len(noise))(state, epsilon)
        if trace:
            records.append(record)
    answer = backward.answer(f, solver.result(state), solver, cost) if backward.traceable else None
    return state, records, answer


@torch.compiler.nested_compile_region
def _region(
    f: Objective,
    solver: Solver,
    backward: Backward,
    structure: Any,
    epsilon: Tensor | None,
    *leaves: Tensor | None,
) -> list[Tensor | None]:
    """One iteration, compiled once for all identical ones.

    Its states are flattened: inputs and outputs may only be tensors, and no input may be returned.
    """
    state = pytree.tree_unflatten(leaves, structure)
    new, _ = solver.step(partial(backward.evaluate, f), state, epsilon, 0)
    given = [x for x in leaves if x is not None]
    return [x.clone() if any(x is y for y in given) else x for x in pytree.tree_leaves(new)]

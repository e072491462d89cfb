"""Settings that change from iteration to iteration, or from row to row."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor

from dcem._checks import check

Schedule = float | Tensor | Callable[[int], float | Tensor] | Sequence[float | Tensor]


def at(schedule: Schedule, t: int) -> float | Tensor:
    """The value of a schedule in iteration t."""
    if isinstance(schedule, float | int | Tensor):  # the common case, and cheap to check
        return schedule
    if callable(schedule):
        return schedule(t)
    return schedule[t] if isinstance(schedule, Sequence) else schedule


def is_constant(settings: Any) -> bool:
    """Is none of the fields of a solver a schedule?"""
    values = (getattr(settings, field.name) for field in fields(settings))
    return not any(callable(value) or isinstance(value, Sequence) for value in values)


def check_schedule(name: str, schedule: Schedule, n_iters: int, check_one: Callable[[Any], None]) -> None:
    """Check every value of a schedule; those of a function are unknown until it is called."""
    if isinstance(schedule, Sequence) and len(schedule) != n_iters:
        raise ValueError(
            f"{name} as a sequence needs one value per iteration ({n_iters}), got {len(schedule)}"
        )
    if not callable(schedule):
        for value in schedule if isinstance(schedule, Sequence) else [schedule]:
            check_one(value)


def rule(name: str, words: str, holds_for: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """A check that raises ValueError for a number or tensor that breaks the rule."""
    return lambda value: check(name, value, words, holds_for)

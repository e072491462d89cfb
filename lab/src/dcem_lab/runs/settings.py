"""Settings with their ranges beside them: what a field allows is declared once, with its default."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from dcem_lab.runs.config import require


@dataclasses.dataclass(frozen=True)
class Range:
    """What a number, every number of a tuple, or a word may be."""

    least: float | None = None  # >=
    above: float | None = None  # >
    most: float | None = None  # <=
    below: float | None = None  # <
    among: Collection[str] | None = None

    def check(self, name: str, value: Any) -> None:
        """ValueError unless the value is allowed; None, where a field takes it, always is."""
        if value is None:
            return
        several = isinstance(value, tuple)
        for one in value if several else (value,):
            require(self._holds(one), name, value, f"values {self}" if several else str(self))

    def _holds(self, value: Any) -> bool:
        if self.among is not None:
            return value in self.among
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if self.among is not None:
            return f"one of {', '.join(self.among)}"
        limits = {
            "at least": self.least,
            "above": self.above,
            "at most": self.most,
            "below": self.below,
        }
        return " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)


def setting(default: Any, **limits: Any) -> Any:
    """A field with a default and the limits of `Range`: ``lr: float = setting(1e-3, above=0)``."""
    return dataclasses.field(default=default, metadata={"range": Range(**limits)})


@dataclasses.dataclass(frozen=True)
class Settings:
    """A base for configs: lists become tuples, so that a frozen config stays hashable, and ranges are held.

    What several fields must fulfil together, a subclass checks in its `__post_init__`, after this one's.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Config(Settings):
    ...     lr: float = setting(1e-3, above=0)
    >>> Config(lr=0)
    Traceback (most recent call last):
    ValueError: lr must be above 0, got 0
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                value = tuple(value)
                object.__setattr__(self, field.name, value)
            if "range" in field.metadata:
                field.metadata["range"].check(field.name, value)

"""Settings with ranges: what a field allows is declared once, with its default."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection
from typing import Any, NamedTuple


def require(holds: bool, field: str, value: object, allowed: str) -> None:
    """For `__post_init__`: a ValueError that names the field, what is allowed and what came.

    >>> require(-1 > 0, "n_samples", -1, "at least 1")
    Traceback (most recent call last):
    ValueError: n_samples must be at least 1, got -1
    """
    if not holds:
        raise ValueError(f"{field} must be {allowed}, got {value!r}")


@dataclasses.dataclass(frozen=True)
class Range:
    """What a number or a word may be, or every one of a tuple."""

    least: float | None = None  # >=
    above: float | None = None  # >
    most: float | None = None  # <=
    below: float | None = None  # <
    among: Collection[str] | None = None
    some: bool = False  # a tuple has at least one

    def check(self, name: str, value: Any) -> None:
        """ValueError unless the value is allowed; None, where a field takes it, always is."""
        if value is None:
            return
        several = isinstance(value, tuple)
        values = value if several else (value,)
        holds = all(map(self._holds, values)) and (len(values) > 0 or not self.some)
        require(holds, name, value, self.text(several))

    def text(self, several: bool = False) -> str:
        """What is allowed, in words; `several` where it is said of a tuple.

        >>> Range(least=0, below=1).text(), Range(least=1, some=True).text(several=True)
        ('at least 0 and below 1', 'one or more values at least 1')
        """
        if self.among is not None:
            return f"{'some' if several else 'one'} of {', '.join(self.among)}"
        words = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        limits = " and ".join(f"{word} {limit}" for word, limit in words.items() if limit is not None)
        return f"{'one or more ' * self.some}values {limits}".rstrip() if several else limits

    def _holds(self, value: Any) -> bool:
        if self.among is not None:
            return value in self.among
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )


def setting(default: Any, **limits: Any) -> Any:
    """A field with a default and the limits of `Range`: ``lr: float = setting(1e-3, above=0)``."""
    return dataclasses.field(default=default, metadata={"range": Range(**limits)})


def resetting(config_type: Any, name: str, default: Any) -> Any:
    """A field of a base class, with its limits and another default."""
    return dataclasses.field(default=default, metadata=config_type.__dataclass_fields__[name].metadata)


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


class Known(NamedTuple):
    """What is known about a field: its type, and its range where one is declared."""

    type: Any
    range: Range | None


def known_settings(config_type: Any) -> dict[str, Known]:
    """All settings of a config by their dotted names, those of nested configs in the place of these."""
    types = typing.get_type_hints(config_type)
    known: dict[str, Known] = {}
    for field in dataclasses.fields(config_type):
        kind = types[field.name]
        if dataclasses.is_dataclass(kind):
            known |= {f"{field.name}.{name}": inner for name, inner in known_settings(kind).items()}
        else:
            known[field.name] = Known(kind, field.metadata.get("range"))
    return known

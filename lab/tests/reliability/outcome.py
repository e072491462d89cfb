"""What a measurement found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Outcome:
    """`count` tries, what went wrong in which of them, the slowest try, and what else is worth knowing."""

    count: int
    failures: list[str] = field(default_factory=list)
    worst_seconds: float | None = None
    notes: str = ""

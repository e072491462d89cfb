"""Format numbers, times and machines as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# Options of a command line that do not affect the result.
_PRIVATE = ("run_dir=", "time_limit=", "tensorboard=")


def number(value: float) -> str:
    """Three digits.

    >>> number(1234.5), number(0.01234)
    ('1,234', '0.0123')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def if_number(text: str, form: Callable[[float], str] = number) -> str:
    """A cell of a table that may be a number, in another form.

    >>> if_number("1234.5"), if_number("out of memory"), if_number("")
    ('1,234', 'out of memory', '')
    """
    try:
        return form(float(text))
    except ValueError:
        return text


def counted(count: int, what: str) -> str:
    """
    >>> counted(1, "episode"), counted(1000, "episode")
    ('1 episode', '1,000 episodes')
    """
    return f"{count:,} {what}{'s' * (count != 1)}"


def scientific(value: float | np.ndarray) -> str:
    """
    >>> scientific(0.00031)
    '3.1e-4'
    """
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e+")


def duration(seconds: float | None) -> str:
    """
    >>> duration(381.3), duration(7300)
    ('6 min 21 s', '2 h 1 min')
    """
    if seconds is None:
        return "unknown"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def machine_of(record: dict[str, Any]) -> str:
    machine = record.get("machine")
    if not machine:
        return "an unknown machine"
    parts = [machine.get("gpu"), f"{machine.get('cores', '?')} cores of {machine.get('cpu', 'unknown')}"]
    return ", ".join(filter(None, parts))


def public_command(text: str) -> str:
    """
    >>> public_command("dcem train cartpole seed=1 run_dir=runs/a time_limit=400")
    'dcem train cartpole seed=1'
    """
    return " ".join(word for word in text.split() if not word.startswith(_PRIVATE))

"""Progress of a loop on stderr: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

_LINE_SECONDS = 10.0
_METRICS = 4  # as many as fit beside the bar


class Progress:
    """Counts steps towards `total`, with rate, time left and the metrics last given to `show`.

    >>> progress = Progress(100, label="regression")
    >>> progress.show({"loss": 0.25})
    >>> progress.advance()
    >>> progress.close()
    """

    def __init__(self, total: int, *, done: int = 0, label: str = "", bar: bool | None = None) -> None:
        """`bar` chooses between bar and lines; by default a terminal gets the bar."""
        self.total, self.done, self.label = total, done, label
        self._metrics = ""
        self._started_at, self._start = done, time.monotonic()
        self._printed = self._start
        self._bar: Any = None
        terminal = sys.stderr is not None and sys.stderr.isatty()  # a process may be started without one
        if terminal if bar is None else bar:
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=done, desc=label, file=sys.stderr, dynamic_ncols=True)

    def show(self, metrics: dict[str, float]) -> None:
        first = list(metrics.items())[:_METRICS]
        self._metrics = " ".join(f"{name}={_short(value)}" for name, value in first)
        if self._bar is not None:
            self._bar.set_postfix_str(self._metrics, refresh=False)

    def advance(self) -> None:
        self.done += 1
        if self._bar is not None:
            self._bar.update()
        elif time.monotonic() - self._printed > _LINE_SECONDS:
            self._printed = time.monotonic()
            print(self.line(), file=sys.stderr, flush=True)

    def line(self) -> str:
        """For example `cartpole 1200/5000 (24%), 35.2 steps/s, 1:48 left, cost=-8.91`."""
        rate = (self.done - self._started_at) / max(time.monotonic() - self._start, 1e-9)
        share = self.done / max(self.total, 1)
        text = f"{self.label} {self.done}/{self.total} ({share:.0%}), {rate:.3g} steps/s"
        if rate > 0:
            text += f", {_clock((self.total - self.done) / rate)} left"
        return f"{text}, {self._metrics}" if self._metrics else text

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _short(value: float) -> str:
    """
    >>> _short(16400), _short(0.0123456), _short(-1234.5)
    ('16,400', '0.01235', '-1234')
    """
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"

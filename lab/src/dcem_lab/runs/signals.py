"""SIGTERM and Ctrl-C as requests to stop: the current step is finished and saved, then the run ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dcem_lab.terminal import interrupt


class Interrupted(BaseException):
    """The run was asked to stop and has stopped; started again, it resumes.

    Like KeyboardInterrupt it is not an Exception: `except Exception` in an experiment must not swallow it.
    """


class StopRequests:
    """Signal handlers, while entered. Outside of `deferred()` a request raises Interrupted on the spot.

    A second Ctrl-C always does. SIGTERM may come several times (schedulers repeat it) and counts once.

    Inside a job of submitit, which has its own handlers, SIGTERM only announces that the scheduler will end
    or preempt the job: the run is saved and continues as long as possible (`save_wanted`). SIGUSR2 announces
    that the job's time is over. It is intercepted: once the run is saved, `pass_on` gives it to submitit,
    which queues the job again.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.save_wanted = False
        self._deferring = False
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():  # only this thread may set handlers
            default = (signal.SIG_DFL, signal.default_int_handler, interrupt)
            wanted = [
                number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) in default
            ]
            if callable(signal.getsignal(signal.SIGUSR2)):
                wanted.append(signal.SIGUSR2)
            self._previous = {number: signal.signal(number, self._handle) for number in wanted}
            if callable(signal.getsignal(signal.SIGTERM)) and signal.SIGTERM not in wanted:
                self._previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._announce)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, a request only sets `received`; whoever defers looks at it, saves and stops."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def pass_on(self) -> None:
        """Give a scheduler's SIGUSR2 to the handler that was there first (which requeues the job)."""
        handler = self._previous.get(signal.SIGUSR2)
        if self.received == signal.SIGUSR2 and callable(handler):
            handler(signal.SIGUSR2, None)

    def _announce(self, number: int, frame: FrameType | None) -> None:
        self.save_wanted = True
        handler = self._previous.get(signal.SIGTERM)
        if callable(handler):
            handler(number, frame)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = self.received == number == signal.SIGINT
        self.received = signal.Signals(number)
        if again or not self._deferring:
            raise Interrupted(f"stopped at once by {self.received.name}")

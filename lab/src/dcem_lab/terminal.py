"""Terminal output: text that is safe to print, and streams that keep working when their reader is gone.

It imports almost nothing, so that the command can set this up before slow imports.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TYPE_CHECKING = False  # instead of importing typing, which takes longer than all other imports here
if TYPE_CHECKING:
    from typing import Any

_STDOUT = 1
_READER_GONE = (errno.EPIPE, errno.EIO)  # a pipe that was closed, a terminal that hung up


def printable(text: object) -> str:
    r"""The text on one line, with control characters (escape sequences, newlines) escaped.

    >>> print(printable("loss\x1b[2J\nof someone else"))
    loss\x1b[2J\nof someone else
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in str(text)
    )


class FolderError(RuntimeError):
    """A folder cannot be used. The message, which may quote untrusted text, is one safe line."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def keep_streams() -> None:
    """Keep stdout and stderr of this process usable when their readers are gone, or if they were closed.

    A training continues when its output is no longer read, as with `2>&1 | head`. Streams that were
    replaced (by a notebook, a test) are left alone.
    """
    _open_closed_descriptors()
    for descriptor, name in ((_STDOUT, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _enduring(descriptor, stream))


@contextmanager
def stoppable_imports() -> Iterator[None]:
    """Inside, Ctrl-C raises KeyboardInterrupt as usual, but during an import it ends the process.

    An import may swallow the exception, as some inside torch do: the command would just continue.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()  # the only one that may
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt(number: int, frame: FrameType | None) -> None:
    """The handler of `stoppable_imports`."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"dcem: stopped\n")
            os._exit(os.EX_TEMPFAIL)
        frame = frame.f_back
    raise KeyboardInterrupt


class _Enduring(io.FileIO):
    """A descriptor whose reader may go away: output of this process and its children is then discarded."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _to_nowhere(self.fileno())
            # stdout is the result: losing it, for example on a full disk, must not count as success.
            if self.fileno() == _STDOUT and error.errno not in _READER_GONE:
                raise
            return len(data)


def _enduring(descriptor: int, stream: io.TextIOWrapper | None) -> io.TextIOWrapper:
    by_line = stream is not None and (stream.line_buffering or stream.write_through)
    return io.TextIOWrapper(
        io.BufferedWriter(_Enduring(descriptor, "w", closefd=False)),
        encoding=stream.encoding if stream else "utf-8",
        errors="backslashreplace",  # do not fail if the locale lacks a character
        line_buffering=by_line,
    )


def _open_closed_descriptors() -> None:
    """Otherwise C libraries would take the next file to be opened, such as a log, for stderr."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            _to_nowhere(descriptor)


def _to_nowhere(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)

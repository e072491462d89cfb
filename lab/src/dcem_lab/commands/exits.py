"""How commands end: exit codes, and the error that means wrong usage."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, os.EX_TEMPFAIL

EXIT_CODES = """\
exit codes:
   0  done
   1  failed; the error is on stderr
   2  wrong usage, a bad setting or an unsuitable run folder; nothing was started
  75  interrupted (SIGTERM, Ctrl-C, time limit) and saved; the same command resumes
"""


class UsageError(ValueError):
    """The command line asks for something that is not allowed; the message is one sentence for the user."""


@contextmanager
def blamed_on_usage(*kinds: type[Exception]) -> Iterator[None]:
    """Inside, errors of these kinds come from what the command line asks for: they become UsageError."""
    try:
        yield
    except kinds as error:
        raise UsageError(str(error)) from error


class MissingError(UsageError):
    """A module is not installed; the message says which extras of the lab have it."""

    def __init__(self, module: str | None, extras: str = "[plot,suite]") -> None:
        super().__init__(
            f"the module {module!r} is not installed; in a checkout, run pip install './lab{extras}'"
        )


@contextmanager
def needs_extras() -> Iterator[None]:
    """For a command whose modules may not be installed: what is missing becomes MissingError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingError(error.name) from error

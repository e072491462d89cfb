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


def missing(error: ModuleNotFoundError) -> str:
    """The module that is not installed, and the extras of the lab that have it."""
    extras = "[sweep]" if error.name in ("joblib", "submitit") else "[plot,suite]"
    return f"the module {error.name!r} is not installed; in a checkout, run pip install './lab{extras}'"

"""What the parsers of all sub-commands have in common."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

from dcem_lab.commands.exits import EXIT_CODES, USAGE

_UNKNOWN = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    """A parser with examples and exit codes below its help, and errors of one line that name what is near.

    `examples` has lines of a command each, with what it is for beside it.
    """

    def __init__(self, command: str, description: str, examples: str, **options: Any) -> None:
        super().__init__(
            prog=f"dcem {command}".strip(),
            description=description,
            epilog=f"examples:\n{examples}\n{EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **options,
        )

    def error(self, message: str) -> NoReturn:
        if message.startswith(_UNKNOWN):
            unknown = message.removeprefix(_UNKNOWN).split()[0].split("=")[0]
            message += did_you_mean(unknown, self._option_string_actions)
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(USAGE)

    def changed_options(self, given: argparse.Namespace) -> dict[str, Any]:
        """The options whose values are not their defaults, by their names on the command line.

        >>> parser = Parser("eval", "Play.", "")
        >>> action = parser.add_argument("--at-once", type=int)
        >>> parser.changed_options(parser.parse_args(["--at-once", "3"]))
        {'--at-once': 3}
        """
        return {
            action.option_strings[0]: getattr(given, action.dest)
            for action in self._actions
            if action.option_strings and getattr(given, action.dest, action.default) != action.default
        }


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A clause to append, or nothing.

    >>> did_you_mean("--episode", ["--episodes", "--seed"])
    ' (did you mean --episodes?)'
    """
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def near_settings(name: str, known: Sequence[str]) -> list[str]:
    """Dotted settings that the name may stand for: near as a whole, or its last part near to theirs.

    >>> near_settings("sampels", ["planner.samples", "model.sample", "seed"])
    ['planner.samples', 'model.sample']
    >>> near_settings("planner.sample", ["planner.samples", "planner.sigma", "seed"])
    ['planner.samples']
    """

    def likeness(key: str) -> float:
        whole = difflib.SequenceMatcher(None, name, key).ratio()
        last = difflib.SequenceMatcher(None, name.split(".")[-1], key.split(".")[-1]).ratio()
        # A long common prefix makes everything in a group look similar: the last parts must be similar too.
        return min(whole, last) if "." in name else max(whole, last)

    scores = {key: likeness(key) for key in known}
    return sorted((key for key in known if scores[key] >= 0.7), key=lambda key: -scores[key])[:3]


def _whole_number(text: str, least: int) -> int:
    """A type of argument."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"must be a whole number from {least}, got {text}")
    return value


positive = partial(_whole_number, least=1)
not_negative = partial(_whole_number, least=0)

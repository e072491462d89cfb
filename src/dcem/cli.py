"""The `dcem` command: a table of sub-commands, each imported when it is called."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Sequence

from dcem.commands.exits import EXIT_CODES, INTERRUPTED, USAGE, UsageError

# name: (module and function that takes the arguments and returns the exit code, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("dcem.commands.train:main", "train an experiment, go on with one, or sweep over settings"),
    "eval": ("dcem.commands.evaluate:main", "play episodes with a trained controller: statistics and a CSV"),
    "reproduce": ("dcem.commands.reproduce:main", "train what the machine can, and draw the figures"),
    "play": ("dcem.commands.play:main", "film a trained controller"),
}

_EXAMPLES = """\
examples:
  dcem train cartpole               train with the paper's settings, or go on with it
  dcem train cartpole preset=tiny   the same in seconds, to see it work
  dcem COMMAND --help               everything about one command

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command; returns its exit code."""
    width = max(map(len, COMMANDS))
    table = "\n".join(f"  {name:{width}}  {line}" for name, (_, line) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="dcem",
        description=f"Differentiable sampling-based optimisation: experiments.\n\ncommands:\n{table}",
        epilog=_EXAMPLES + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", metavar="COMMAND", help="one of the commands above")
    parser.add_argument("rest", metavar="...", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(arguments)
    if options.command not in COMMANDS:
        near = difflib.get_close_matches(options.command, COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        parser.error(f"there is no command {options.command!r}; {hint}known: {', '.join(COMMANDS)}")
    module, function = COMMANDS[options.command][0].split(":")
    try:
        return int(getattr(importlib.import_module(module), function)(options.rest))
    except UsageError as error:
        print(f"dcem {options.command}: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print(f"dcem {options.command}: stopped", file=sys.stderr)
        return INTERRUPTED

"""The `dcem` command: a table of sub-commands, each imported when it is called."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from dcem.commands.exits import FAILED, INTERRUPTED, USAGE, UsageError
from dcem.commands.parser import Parser, did_you_mean

# name: (module and function that takes the arguments and returns the exit code, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "reproduce": ("dcem.commands.reproduce:main", "train what the machine can, and write the report"),
    "train": ("dcem.commands.train:main", "train an experiment, go on with one, or sweep over settings"),
    "sweep-status": ("dcem.commands.sweep_status:main", "a table of runs: progress and best figures"),
    "eval": ("dcem.commands.evaluate:main", "play episodes with a trained controller: statistics and a CSV"),
    "play": ("dcem.commands.play:main", "film a trained controller"),
    "export": ("dcem.commands.export:main", "keep a run's training curve and record under results/"),
    "report": ("dcem.commands.report:main", "every figure and table beside the paper's, as one HTML page"),
    "bench": ("dcem.commands.bench:main", "speed and memory, side by side with peers"),
}

_EXAMPLES = """\
  dcem reproduce --quick            small versions of everything, in minutes, and a page that shows it
  dcem train cartpole preset=tiny   one experiment in seconds, to see it work
  dcem train cartpole               the same with the paper's settings, or go on with it
  dcem play cartpole                film a controller that ships
  dcem COMMAND --help               everything about one command
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command; returns its exit code."""
    parser = _parser()
    given = sys.argv[1:] if arguments is None else arguments
    if not given:
        parser.print_help(sys.stderr)
        return USAGE
    options = parser.parse_args(given)
    if options.command not in COMMANDS:
        hint = did_you_mean(options.command, COMMANDS) or f"; known: {', '.join(COMMANDS)}"
        parser.error(f"there is no command {options.command!r}{hint}")
    module, function = COMMANDS[options.command][0].split(":")
    try:
        code = int(getattr(importlib.import_module(module), function)(options.rest))
        sys.stdout.flush()
        return code
    except UsageError as error:
        print(f"dcem {options.command}: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print(f"dcem {options.command}: stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush complains
        return FAILED


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    table = "\n".join(f"  {name:{width}}  {line}" for name, (_, line) in COMMANDS.items())
    parser = Parser(
        "",
        "An argmin you can train through: the experiments of the differentiable cross-entropy method.\n\n"
        f"commands:\n{table}",
        _EXAMPLES,
        usage="dcem COMMAND ...",
    )
    parser.add_argument("command", metavar="COMMAND", help="one of the commands above")
    parser.add_argument("rest", metavar="...", nargs=argparse.REMAINDER, help="its arguments")
    parser.add_argument("--version", action="version", version=_version())
    return parser


def _version() -> str:
    try:
        return f"dcem {metadata.version('dcem')}"
    except metadata.PackageNotFoundError:
        return "dcem, from a checkout that is not installed"

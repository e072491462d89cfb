"""The `dcem` command: a table of sub-commands, each imported when it is called."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from dcem_lab.commands.exits import FAILED, INTERRUPTED, USAGE, UsageError
from dcem_lab.commands.parser import Parser, did_you_mean

# name: (module of `commands` whose `main` takes the arguments and returns the exit code, a line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "reproduce": ("reproduce", "train what the machine can, and write the report"),
    "train": ("train", "train an experiment, go on with one, or sweep over settings"),
    "sweep-status": ("sweep_status", "a table of runs: progress and best figures"),
    "eval": (
        "evaluate",
        "play episodes with a trained controller: statistics and a CSV",
    ),
    "play": ("play", "film a trained controller"),
    "ship": ("ship", "keep the weights of a run under a name"),
    "export": ("export", "keep a run's training curve and record under results/"),
    "report": (
        "report",
        "every figure and table beside the paper's, as one HTML page",
    ),
    "bench": ("bench", "speed and memory, side by side with peers"),
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
    try:
        module = importlib.import_module(f"dcem_lab.commands.{COMMANDS[options.command][0]}")
        code = int(module.main(options.rest))
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
        return f"dcem {metadata.version('dcem-lab')}"
    except metadata.PackageNotFoundError:
        return "dcem, from a checkout that is not installed"

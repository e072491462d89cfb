"""The `dcem` command: a table of sub-commands, each imported when it is called.

Nothing slow is imported before `main` starts: until then, Ctrl-C prints a traceback.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from dcem_lab.commands.exits import FAILED, INTERRUPTED, USAGE, UsageError, missing
from dcem_lab.terminal import FolderError, keep_streams, printable, stoppable_imports

# name: (module of `commands` whose `main` takes the arguments and returns the exit code, a line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "reproduce": ("reproduce", "train what the machine can, then write the report"),
    "train": ("train", "train an experiment, resume one, or sweep over settings"),
    "sweep-status": ("sweep_status", "show the progress and metrics of many runs"),
    "eval": ("evaluate", "evaluate a trained controller: statistics, and a CSV of all episodes"),
    "play": ("play", "record a video of a trained controller"),
    "ship": ("ship", "save the weights of a run under a name"),
    "export": ("export", "copy a run's training curve and record to lab/results/"),
    "report": ("report", "write one HTML page with every figure and table next to the paper's"),
    "bench": ("bench", "measure speed and memory compared with other packages"),
}

_EXAMPLES = """\
  dcem reproduce --quick            small versions of all experiments, in minutes, with a report
  dcem train cartpole preset=tiny   one experiment in seconds, to see it work
  dcem train cartpole               the same with the paper's settings, or resume it
  dcem play cartpole                record a video of a pretrained controller
  dcem COMMAND --help               options of one command
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command; returns its exit code."""
    name = "dcem"
    try:
        keep_streams()
        with stoppable_imports():
            command, rest = _parsed(sys.argv[1:] if arguments is None else arguments)
            name = f"dcem {command}"
            code = int(importlib.import_module(f"dcem_lab.commands.{COMMANDS[command][0]}").main(rest))
        sys.stdout.flush()
        return code
    except ModuleNotFoundError as error:
        said, code = missing(error), USAGE
    except (UsageError, FolderError) as error:
        said, code = str(error), USAGE
    except OSError as error:
        said, code = str(error), FAILED
    except KeyboardInterrupt:
        said, code = "stopped", INTERRUPTED
    print(f"{name}: {printable(said)}", file=sys.stderr)
    return code


def _parsed(given: Sequence[str]) -> tuple[str, list[str]]:
    """The command and its arguments."""
    import argparse
    from importlib import metadata

    from dcem_lab.commands.parser import Parser, did_you_mean

    try:
        version = f"dcem {metadata.version('dcem-lab')}"
    except metadata.PackageNotFoundError:
        version = "dcem, from a checkout that is not installed"
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
    parser.add_argument("--version", action="version", version=version)
    if not given:
        parser.print_help(sys.stderr)
        sys.exit(USAGE)
    options = parser.parse_args(given)
    if options.command not in COMMANDS:
        hint = did_you_mean(options.command, COMMANDS) or f"; known: {', '.join(COMMANDS)}"
        parser.error(f"there is no command {options.command!r}{hint}")
    return options.command, options.rest

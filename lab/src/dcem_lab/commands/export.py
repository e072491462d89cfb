"""`dcem export`: what a training on cheetah or walker leaves under results/."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dcem_lab.commands.exits import DONE, UsageError
from dcem_lab.commands.parser import Parser

_EXAMPLES = """\
  dcem export runs/planet/best/seed0 --name cheetah-run-best
  dcem export runs/embed/default/seed0 --name cheetah-run --results out/study
"""


def main(arguments: Sequence[str]) -> int:
    """Run `dcem export` with these arguments; returns the exit code, raises UsageError."""
    given = _parser().parse_args(arguments)
    from dcem_lab.runs import RunError
    from dcem_lab.runs.record import read_record
    from dcem_lab.suite.results import CONTROLLERS, export_curve

    try:
        experiment = read_record(given.run)["experiment"]
    except RunError as error:
        raise UsageError(str(error)) from error
    if experiment not in CONTROLLERS:
        raise UsageError(f"RUN must be of {', '.join(CONTROLLERS)}, got one of {experiment}")
    try:
        print(export_curve(given.run, given.name, given.results))
    except ValueError as error:
        raise UsageError(str(error)) from error
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "export",
        "Keep the training curve and the record of a run of planet, embed or ppo under results/.",
        _EXAMPLES,
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder")
    parser.add_argument("--name", required=True, help="of the variant: task, then what is special about it")
    parser.add_argument(
        "--results", type=Path, default=Path("lab/results"), metavar="DIR", help="where to (%(default)s)"
    )
    return parser

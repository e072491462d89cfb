"""`dcem export`: what a training leaves under results/."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dcem_lab.commands.exits import DONE, blamed_on_usage
from dcem_lab.commands.parser import Parser

if TYPE_CHECKING:
    from dcem_lab.runs.export import Keep

# Modules whose `keep` says what is kept of a run, if not its whole log. The suite's needs a simulator.
_KEEPERS = {
    "regression": "regression.experiment",
    "cartpole-grid": "cartpole.grid",
    "cartpole-baselines": "cartpole.baselines",
    **dict.fromkeys(("agent", "planet", "embed", "ppo"), "suite.results"),
}

_EXAMPLES = """\
  dcem export runs/planet/best/seed0 --name cheetah-run-best
  dcem export runs/regression/dcem/seed0
  dcem export runs/embed/default/seed0 --name cheetah-run --results out/study
"""


def main(arguments: Sequence[str]) -> int:
    """Run `dcem export` with these arguments; returns the exit code, raises UsageError."""
    given = _parser().parse_args(arguments)
    for folder in keep(given.run, given.results, given.name):
        print(folder)
    return DONE


def keep(run: Path, results: Path, name: str | None = None) -> list[Path]:
    """Export a run of any experiment; returns a folder per seed, raises UsageError."""
    from dcem_lab.experiments import EXPERIMENTS
    from dcem_lab.runs import RunError, read_record
    from dcem_lab.runs.export import export_run

    with blamed_on_usage(RunError, ValueError):
        experiment = read_record(run).get("experiment")
        if experiment not in EXPERIMENTS and "." not in str(experiment):
            known = ", ".join(EXPERIMENTS)
            raise ValueError(f"experiment must be one of {known}, or a module's path, got {experiment!r}")
        return export_run(run, results, name, _keeper(str(experiment)))


def _keeper(experiment: str) -> Keep:
    from dcem_lab.runs.export import whole_log

    if experiment not in _KEEPERS:
        return whole_log
    return importlib.import_module(f"dcem_lab.{_KEEPERS[experiment]}").keep


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "export",
        "Copy the training curve and record of a run to lab/results/<experiment>/<variant>/seed<k>.",
        _EXAMPLES,
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder")
    parser.add_argument(
        "--name",
        help="name of the variant: the task, then what is special about it (default: the changed settings)",
    )
    parser.add_argument(
        "--results", type=Path, default=Path("lab/results"), metavar="DIR", help="destination (%(default)s)"
    )
    return parser

"""`dcem export`: what a training leaves under results/."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from dcem_lab.commands.exits import DONE, UsageError
from dcem_lab.commands.parser import Parser

# The modules whose `keep` knows what is kept of a run; of others it is the whole log.
KEEPERS = {
    "regression": "dcem_lab.regression.experiment",
    "cartpole-grid": "dcem_lab.cartpole.grid",
    "cartpole-baselines": "dcem_lab.cartpole.baselines",
    "planet": "dcem_lab.suite.results",
    "embed": "dcem_lab.suite.results",
    "ppo": "dcem_lab.suite.results",
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
    """Export a run of any experiment; returns a folder a seed, raises UsageError."""
    from dcem_lab.experiments import EXPERIMENTS
    from dcem_lab.runs import RunError, read_record
    from dcem_lab.runs.export import export_run, whole_log

    try:
        experiment = read_record(run).get("experiment")
        if experiment not in EXPERIMENTS and "." not in str(experiment):
            known = ", ".join(EXPERIMENTS)
            raise ValueError(f"experiment must be one of {known}, or a module's path, got {experiment!r}")
        keeper = KEEPERS.get(str(experiment))
        return export_run(run, results, name, importlib.import_module(keeper).keep if keeper else whole_log)
    except (RunError, ValueError) as error:
        raise UsageError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "export",
        "Keep the training curve and the record of a run under results/<experiment>/<variant>/seed<k>.",
        _EXAMPLES,
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder")
    parser.add_argument(
        "--name", help="of the variant: task, then what is special about it (what the run's settings change)"
    )
    parser.add_argument(
        "--results", type=Path, default=Path("lab/results"), metavar="DIR", help="where to (%(default)s)"
    )
    return parser

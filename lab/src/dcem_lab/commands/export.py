"""`dcem export`: what a training leaves under results/."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dcem_lab.commands.exits import DONE, blamed_on_usage
from dcem_lab.commands.parser import Parser

if TYPE_CHECKING:
    from dcem_lab.runs.export import Keep

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
    from dcem_lab.runs import read_record
    from dcem_lab.runs.export import export_run

    with blamed_on_usage(ValueError):
        experiment = read_record(run).get("experiment")
        if experiment not in EXPERIMENTS and "." not in str(experiment):
            known = ", ".join(EXPERIMENTS)
            raise ValueError(f"experiment must be one of {known}, or a module's path, got {experiment!r}")
        return export_run(run, results, name, _keeper(str(experiment)))


def _keeper(experiment: str) -> Keep:
    """What knows which part of a run is kept, if not its whole log."""
    from dcem_lab.cartpole import baselines, grid
    from dcem_lab.regression import experiment as regression
    from dcem_lab.runs.export import whole_log
    from dcem_lab.suite import results

    keepers: dict[str, Keep] = {
        "regression": regression.keep,
        "cartpole-grid": grid.keep,
        "cartpole-baselines": baselines.keep,
        **dict.fromkeys(("agent", "planet", "embed", "ppo"), results.keep),
    }
    return keepers.get(experiment, whole_log)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "export",
        "Copy the training curve and record of a run to lab/results/<experiment>/<variant>/seed<k>.",
        _EXAMPLES,
    )
    add, results = parser.add_argument, Path("lab/results")
    words = "name of the variant: the task, then what is special about it (default: the changed settings)"
    add("run", metavar="RUN", type=Path, help="a run folder")
    add("--name", help=words)
    add("--results", type=Path, default=results, metavar="DIR", help="destination (%(default)s)")
    return parser

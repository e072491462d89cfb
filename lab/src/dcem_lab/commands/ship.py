"""`dcem ship`: weights of a run under a name that `dcem eval`, `dcem play` and `from=` take."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dcem_lab.commands.exits import DONE, UsageError, blamed_on_usage
from dcem_lab.commands.parser import Parser

_EXAMPLES = """\
  dcem ship runs/planet/best/seed0 cheetah-run          the best weights of a controller
  dcem ship runs/ppo/default/seed0 hopper --snapshot last --folder out/weights
  dcem ship runs/cartpole-grid/default/seed0 cartpole   the best of each latent dimension: cartpole-2, ...
"""


def main(arguments: Sequence[str]) -> int:
    """Run `dcem ship` with these arguments; returns the exit code, raises UsageError."""
    given = _parser().parse_args(arguments)
    from dcem_lab import pretrained
    from dcem_lab.cartpole import shipped
    from dcem_lab.runs import read_record
    from dcem_lab.suite.results import CONTROLLERS
    from dcem_lab.suite.trained import load

    with blamed_on_usage(ValueError, LookupError, OSError):
        experiment = read_record(given.run)["experiment"]
        folder = given.folder or pretrained.FOLDER
        if experiment in CONTROLLERS:
            if given.tau is not None:
                raise UsageError(f"--tau must be left out for {experiment}: it is for the cartpole's grid")
            written = [load(given.run, given.snapshot).ship(given.name, folder)]
        elif experiment in shipped.EXPERIMENTS:
            if given.snapshot != "best":
                raise UsageError(f"--snapshot must be best for {experiment}, got {given.snapshot}")
            written = shipped.ship(given.run, given.name, given.tau, folder)
        else:
            known = ", ".join([*CONTROLLERS, *shipped.EXPERIMENTS])
            raise UsageError(f"RUN must be of {known}, got one of {experiment}")
    for path in written:
        print(path)
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "ship",
        "Save the weights of a run under a name, replacing any previous ones: as safetensors, with config\n"
        "and SHA-256 in a manifest.",
        _EXAMPLES,
    )
    parser.add_argument("run", metavar="RUN", help="a run of agent, planet, embed, ppo or the cartpole")
    parser.add_argument("name", metavar="NAME", help="lower-case letters, digits, '.', '_' and '-'")
    snapshots = "which weights: best in evaluations, or last (%(default)s)"
    parser.add_argument("--snapshot", choices=["best", "last"], default="best", help=snapshots)
    grid = "temperature of the decoders to take from a grid (1)"
    parser.add_argument("--tau", type=float, metavar="TAU", help=grid)
    parser.add_argument("--folder", type=Path, metavar="DIR", help="destination (lab/weights)")
    return parser

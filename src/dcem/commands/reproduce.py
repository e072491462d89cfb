"""`dcem reproduce`: train what the machine can, then draw the figures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dcem.commands import play, train
from dcem.commands.exits import DONE, EXIT_CODES

_EXAMPLES = """\
examples:
  dcem reproduce --quick          small versions of the experiments, in minutes on two cores
  dcem reproduce                  the paper's budgets; stop and start it as you like, it goes on

"""


class Training(NamedTuple):
    """A `dcem train` command: the experiment, the name of its run folder, and its settings."""

    experiment: str
    name: str
    settings: tuple[str, ...]


QUICK = (
    Training("regression", "regression/dcem", ("preset=quick",)),
    Training("regression", "regression/gd", ("preset=quick", "method=gd")),
    Training("cartpole", "cartpole", ("preset=quick",)),
)
STUDY = (
    *(
        Training("regression", f"regression/{variant}", (f"preset={variant}",))
        for variant in ("dcem", "gd", "gd-starts", "gd-steps", "dcem-T3", "dcem-T5", "dcem-tau0.1")
    ),
    Training("cartpole-grid", "cartpole/soft", ("states_per_update=8", "updates=12500")),
    Training("cartpole-grid", "cartpole/hard", ("states_per_update=8", "updates=12500", "taus=[0]")),
)


def main(arguments: Sequence[str]) -> int:
    """Run `dcem reproduce` with these arguments; returns the exit code."""
    given = _parser().parse_args(arguments)
    out: Path = given.out or Path("out/quick" if given.quick else "out/study")
    trainings = QUICK if given.quick else STUDY
    for i, training in enumerate(trainings, start=1):
        folder = out / "runs" / training.name
        print(f"[{i}/{len(trainings)}] {training.experiment} {' '.join(training.settings)}", flush=True)
        code = train.main([training.experiment, *training.settings, f"run_dir={folder}", "tensorboard=false"])
        if code != DONE:
            return code
        _export(training.experiment)(folder, out / "results")
    film = out / "cartpole.mp4"
    code = play.main(["cartpole", "--output", str(film)])
    if code != DONE:
        return code
    print("figures and tables:")
    for path in _figures(out / "results", out / "figures"):
        if path.suffix in (".png", ".md"):
            print(f"  {path}")
    print(f"the shipped controller swings the cartpole up:\n  {film}")
    return DONE


def _figures(results: Path, out: Path) -> list[Path]:
    from dcem.report import regression

    return regression.report(results, out)


def _export(experiment: str) -> Callable[[Path, Path], object]:
    if experiment == "regression":
        from dcem.experiments.regression import export

        return export
    if experiment == "cartpole-grid":
        from dcem.experiments.cartpole_grid import export as export_grid

        return lambda folder, results: export_grid(folder, results / "cartpole")
    return lambda folder, results: None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dcem reproduce",
        description="Train the experiments one after the other, resuming what is done, and draw the figures.",
        epilog=_EXAMPLES + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small versions of the experiments")
    parser.add_argument("--out", type=Path, help="where everything goes (out/quick or out/study)")
    return parser

"""`dcem reproduce`: train what the machine can, evaluate what ships, and write the report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dcem_lab.commands import evaluate, export, play, train
from dcem_lab.commands.exits import DONE, INTERRUPTED, missing
from dcem_lab.commands.parser import Parser

_EXAMPLES = """\
  dcem reproduce --quick          small versions of the experiments, in minutes on two cores
  dcem reproduce                  the paper's budgets; you can stop it at any time, and it resumes
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
    Training("cartpole-baselines", "cartpole/baselines", ()),
)
# Pretrained controllers of the control suite, and a planner that is fast enough for a small machine.
SUITE = ("cheetah-run", "walker-walk")
SMALL_PLANNER = ("--episodes", "1", "--samples", "100", "--elites", "10", "--iterations", "4")


def main(arguments: Sequence[str]) -> int:
    """Run `dcem reproduce` with these arguments; returns the exit code."""
    given = _parser().parse_args(arguments)
    out: Path = given.out or Path("out/quick" if given.quick else "out/study")
    trainings = QUICK if given.quick else STUDY
    for i, training in enumerate(trainings, start=1):
        folder = out / "runs" / training.name
        print(f"[{i}/{len(trainings)}] {training.experiment} {' '.join(training.settings)}", flush=True)
        code = train.main([training.experiment, *training.settings, f"run_dir={folder}", "tensorboard=false"])
        if code == INTERRUPTED:
            print(f"resume with: dcem reproduce{' --quick' * given.quick} --out {out}", file=sys.stderr)
        if code != DONE:
            return code
        export.keep(folder, out / "results")
    (_finish_quick if given.quick else _finish_study)(out)
    from dcem_lab import study
    from dcem_lab.report.sources import Sources

    # Of a quick run: the committed study, where it is at hand, and the run itself.
    results, quick = (Path("lab/results"), out) if given.quick else (out / "results", None)
    page = study.write_page(out / "report.html", Sources(results, Path(), quick))
    print(f"the report, compared with the paper:\n  {page}\n  open {page.resolve().as_uri()}")
    return DONE


def _finish_quick(out: Path) -> None:
    """Evaluate and film what ships."""
    from dcem_lab.cartpole.study import score_shipped

    scores = out / "results" / "cartpole" / "shipped.csv"
    if not scores.exists():
        print("costs of the pretrained cartpole controllers and of CEM", flush=True)
        score_shipped(scores)
    _evaluate_suite(out / "results" / "dmc")
    film = out / "cartpole.mp4"
    if not film.exists():
        _unless_missing(play.main, ["cartpole", "--output", str(film)])


def _finish_study(out: Path) -> None:
    """Measure and draw what the trainings left, where it has not been done."""
    from dcem_lab.cartpole.study import complete

    print("cartpole: scores with new noise, surfaces, closed loop, video", flush=True)
    complete([out / "runs" / training.name for training in STUDY if training.experiment == "cartpole-grid"],
             out / "results")  # fmt: skip


def _evaluate_suite(folder: Path) -> None:
    """An episode of each controller of the control suite that ships."""
    from dcem_lab import pretrained

    for name in SUITE:
        path = folder / f"{name}.csv"
        if name not in pretrained.available() or path.exists():
            continue
        print(f"one episode of {name}, with few samples per plan", flush=True)
        _unless_missing(evaluate.main, [name, *SMALL_PLANNER, "--csv", str(path)])


def _unless_missing(command: Callable[[Sequence[str]], int], words: Sequence[str]) -> None:
    """A command that may need a simulator, or Matplotlib, which are not installed."""
    try:
        command(words)
    except ModuleNotFoundError as error:
        print(f"skipped: {missing(error)}")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "reproduce",
        "Train the experiments one after the other, evaluate the pretrained controllers and write the\n"
        "report: one HTML page with every figure and table next to the paper's. Resumes what is unfinished.",
        _EXAMPLES,
    )
    parser.add_argument("--quick", action="store_true", help="small versions of the experiments")
    parser.add_argument("--out", type=Path, metavar="DIR", help="output folder (out/quick or out/study)")
    return parser

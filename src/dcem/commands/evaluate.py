"""`dcem eval`: episodes of a trained controller, their statistics, and a CSV of every one."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dcem.commands.exits import DONE, EXIT_CODES, UsageError

if TYPE_CHECKING:
    from dcem.experiments.evaluate import Trained

_EXAMPLES = """\
examples:
  dcem eval runs/planet/best/seed0                        100 episodes of the newest checkpoint
  dcem eval cheetah-run --episodes 1                      weights that ship with the package
  dcem eval cheetah-run --samples 100 --elites 10         plan less, to see it on a small machine

"""


def main(arguments: Sequence[str]) -> int:
    """Run `dcem eval` with these arguments; returns the exit code, raises UsageError."""
    given = _parser().parse_args(arguments)
    from dcem.experiments.evaluate import play, statistics, write_csv

    trained = load_trained(given)
    at_once = min(given.at_once or given.episodes, given.episodes)
    workers = min(at_once, os.cpu_count() or 1) if at_once > 1 else 0
    start = time.monotonic()
    episodes = []
    for episode in play(trained, given.episodes, given.seed, at_once, workers):
        episodes.append(episode)
        print(f"{len(episodes)}/{given.episodes}: return {episode.total:.1f}", file=sys.stderr, flush=True)
    path = given.csv or default_path(given.what, "evaluation.csv")
    write_csv(path, episodes)
    for name, value in statistics([episode.total for episode in episodes]).items():
        print(f"{name:9} {value:.2f}")
    print(f"\nevery episode: {path} ({time.monotonic() - start:.0f} s)")
    return DONE


def load_trained(given: argparse.Namespace) -> Trained:
    """What `RUN_OR_NAME`, `--device` and the planner's options ask for."""
    try:
        import torch

        from dcem.experiments.evaluate import load
        from dcem.experiments.planet import choose_device
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the module {error.name!r} is not installed; pip install 'dcem[dmc]' has all that is needed"
        ) from error
    from dcem.pretrained import PretrainedError
    from dcem.runs import CheckpointError, RunError

    if given.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device must be cpu here: there is no CUDA device")
    changes = {name: getattr(given, name) for name in ("samples", "elites", "iterations")}
    changes = {name: value for name, value in changes.items() if value is not None}
    try:
        return load(given.what, choose_device(given.device), **changes)
    except (ValueError, PretrainedError, CheckpointError, RunError) as error:
        raise UsageError(str(error)) from error


def default_path(run_or_name: str, file: str) -> Path:
    """In the run folder, or here with the name of what shipped in front."""
    folder = Path(run_or_name)
    return folder / file if folder.is_dir() else Path(f"{run_or_name}-{file}")


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """What `dcem eval` and `dcem play` both take."""
    parser.add_argument("what", metavar="RUN_OR_NAME", help="a run folder, or the name of weights that ship")
    parser.add_argument("--seed", type=int, default=1_000_000, help="of the first episode (%(default)s)")
    parser.add_argument("--samples", type=_positive, help="action sequences an iteration of the planner")
    parser.add_argument("--elites", type=_positive, help="how many of them the next iteration starts from")
    parser.add_argument("--iterations", type=_positive, help="iterations of the planner")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="(%(default)s)")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dcem eval",
        description="Play episodes with a trained controller, without exploration noise.",
        epilog=_EXAMPLES + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_common_options(parser)
    parser.add_argument("--episodes", type=_positive, default=100, help="how many (%(default)s)")
    parser.add_argument("--at-once", type=_positive, help="episodes played side by side (all)")
    parser.add_argument("--csv", type=Path, help="where every episode is written (evaluation.csv of the run)")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value

"""`dcem play`: a film of a trained controller."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dcem.commands.evaluate import add_common_options, default_path, load_trained
from dcem.commands.exits import DONE, EXIT_CODES, FAILED

_EXAMPLES = """\
examples:
  dcem play runs/planet/best/seed0                     an episode of the newest checkpoint
  dcem play cheetah-run --samples 100 --elites 10      plan less, to see it sooner

"""


def main(arguments: Sequence[str]) -> int:
    """Run `dcem play` with these arguments; returns the exit code, raises UsageError."""
    given = _parser().parse_args(arguments)
    # MuJoCo chooses how to draw when it is first imported; without a screen only EGL works.
    os.environ.setdefault("MUJOCO_GL", "egl")
    trained = load_trained(given)
    from dcem.experiments.film import CannotDrawError, film

    path = given.output or default_path(given.what, "play.mp4")
    try:
        episode = film(trained, path, given.seed, given.fps)
    except CannotDrawError as error:
        print(f"dcem play: {error}", file=sys.stderr)
        return FAILED
    print(f"return {episode.total:.1f} in {episode.length} actions: {path}")
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dcem play",
        description="Film an episode of a trained controller.",
        epilog=_EXAMPLES + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_common_options(parser)
    parser.add_argument("--output", type=Path, help="the film (play.mp4 of the run)")
    parser.add_argument("--fps", type=float, default=25, help="frames a second, one an action (%(default)s)")
    return parser

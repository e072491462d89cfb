"""`dcem play`: a video of a trained controller."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from dcem_lab.commands.evaluate import add_common_options, check_cartpole_options, default_path, load_trained
from dcem_lab.commands.exits import DONE, FAILED
from dcem_lab.commands.parser import Parser
from dcem_lab.runs.progress import Progress

_EXAMPLES = """\
  dcem play runs/planet/best/seed0                     an episode of the best weights
  dcem play cheetah-run --samples 100 --elites 10      plan with fewer samples, to be faster
  dcem play cartpole                                   latent DCEM next to CEM (also: cartpole-2, -8, -16)
  dcem play cartpole-closed-loop                       replanning after every step, next to the paper's
"""


def main(arguments: Sequence[str]) -> int:
    """Run `dcem play` with these arguments; returns the exit code, raises UsageError."""
    given = _parser().parse_args(arguments)
    from dcem_lab.cartpole.shipped import is_one

    if is_one(given.what):
        return _play_cartpole(given)
    # MuJoCo and pygame choose how to draw when they are first used; neither needs a screen then.
    os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    trained = load_trained(given)
    from dcem_lab.suite.evaluate import steps_to_play
    from dcem_lab.suite.film import CannotDrawError, film

    path = given.output or default_path(given.what, "play.mp4")
    try:
        with closing(Progress(steps_to_play(trained, 1, 1) or 0, label=given.what)) as progress:
            episode = film(trained, path, given.seed, given.fps or 25, progress.advance, given.controller)
    except CannotDrawError as error:
        print(f"dcem play: {error}", file=sys.stderr)
        return FAILED
    print(f"return {episode.total:.1f} in {episode.length} actions: {path}")
    return DONE


def _play_cartpole(given: argparse.Namespace) -> int:
    check_cartpole_options(_parser(), given, {"--seed", "--output", "--fps"})
    from dcem_lab.cartpole.film import film

    path = given.output or default_path(given.what, "play.mp4")
    path, sides = film(given.what, path, given.seed, fps=given.fps or 10)
    for side in sides:
        starts = side.actions.shape[-1]
        cost = f"mean cost {side.costs[-1].mean():.2f} from {starts} states with the pole hanging down"
        print(f"{side.title.replace(chr(10), ', ')}: {cost}")
    print(path)
    return DONE


def _parser() -> Parser:
    parser = Parser("play", "Record a video of one episode of a trained controller.", _EXAMPLES)
    add_common_options(parser)
    parser.add_argument("--output", type=Path, metavar="FILE", help="video file (play.mp4 in the run folder)")
    words = "name of the controller, as in the table of `dcem eval`, for the report"
    parser.add_argument("--controller", metavar="NAME", help=words)
    words = "frames per second, one per action (25; cartpole: 10)"
    parser.add_argument("--fps", type=float, metavar="F", help=words)
    return parser

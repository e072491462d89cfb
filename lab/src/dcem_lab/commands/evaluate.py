"""`dcem eval`: episodes of a trained controller, their statistics, and a CSV of every one."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcem_lab.commands.exits import DONE, INTERRUPTED, UsageError, blamed_on_usage
from dcem_lab.commands.parser import Parser, not_negative, positive
from dcem_lab.runs.progress import Progress

if TYPE_CHECKING:
    from dcem_lab.suite.agents import Episode
    from dcem_lab.suite.trained import Trained

_EXAMPLES = """\
  dcem eval runs/planet/best/seed0                        100 episodes of the best weights
  dcem eval cheetah-run --episodes 1                      pretrained weights
  dcem eval cheetah-run --samples 100 --elites 10         fewer samples, for a small machine
  dcem eval RUN --table lab/results/dmc/evaluations.csv   also for the comparison in the report
  dcem eval cartpole-closed-loop                          does the pole stay up when replanning?
  dcem eval --table lab/results/dmc/evaluations.csv --merge other.csv --rename latent-dcem latent-dcem-T5
"""


def main(arguments: Sequence[str]) -> int:
    """Run `dcem eval` with these arguments; returns the exit code, raises UsageError."""
    given = _parser().parse_args(arguments)
    if given.merge or given.rename:
        return _edit_table(given)
    if given.what is None:
        raise UsageError("name a run folder or pretrained weights")
    # Under its default name it would replace the run's own episodes.
    if given.table and not given.controller and (_changes(given) or given.snapshot != "best"):
        raise UsageError(
            "--table needs a name for a controller whose planner or snapshot is changed, "
            "for example --controller full-cem-100"
        )
    from dcem_lab.cartpole.shipped import is_one

    if is_one(given.what):
        return _drive_cartpole(given)
    trained = load_trained(given)
    if given.table is not None:
        # Refuse a file that is something else before the episodes are played, not after.
        from dcem_lab.suite.results import read_table

        with blamed_on_usage(OSError, ValueError):
            read_table(given.table)
    from dcem_lab.suite.evaluate import play, statistics, steps_to_play, write_episodes

    at_once = min(given.at_once or given.episodes, given.episodes)
    workers = min(at_once, os.cpu_count() or 1) if at_once > 1 else 0
    path = given.csv or default_path(given.what, "evaluation.csv")
    start = time.monotonic()
    episodes = []
    steps = steps_to_play(trained, given.episodes, at_once)
    label = f"{given.episodes} episode{'s' * (given.episodes > 1)}"
    try:
        with closing(Progress(steps or 0, label=label)) as progress:
            for episode in play(trained, given.episodes, given.seed, at_once, workers, progress.advance):
                episodes.append(episode)
                progress.show({"mean return": sum(one.total for one in episodes) / len(episodes)})
    except KeyboardInterrupt:
        return _stopped(given, path, episodes)
    write_episodes(path, episodes)
    if given.table is not None:
        _add_to_table(given, trained, episodes, time.monotonic() - start)
    if len(episodes) == 1:
        print(f"return    {episodes[0].total:.2f}")
    else:
        for name, value in statistics([episode.total for episode in episodes]).items():
            print(f"{name:9} {value:.2f}")
    print(f"\nall episodes: {path} ({time.monotonic() - start:.0f} s)")
    return DONE


def _edit_table(given: argparse.Namespace) -> int:
    """Merge and rename in a table; nothing is played."""
    unfit = _parser().changed_options(given).keys() - {"--table", "--merge", "--rename"}
    also = ", ".join(filter(None, [given.what, *sorted(unfit)]))
    if given.table is None or also:
        said = f"also {also}" if also else "none"
        raise UsageError(f"--merge and --rename need --table, and nothing else, got {said}")
    from dcem_lab.suite.results import merge, rename

    with blamed_on_usage(OSError, ValueError):
        for other in given.merge or ():
            merge(given.table, other)
        for old, new in given.rename or ():
            rename(given.table, old, new)
    print(given.table)
    return DONE


def _add_to_table(
    given: argparse.Namespace, trained: Trained, episodes: list[Episode], seconds: float
) -> None:
    from dcem_lab.suite.results import add_episodes, controller_of
    from dcem_lab.suite.trained import is_run

    controller = given.controller or controller_of(trained)
    run = given.run or "/".join(Path(given.what).parts[-2:])
    snapshot = given.snapshot if is_run(given.what) else None  # what ships has only one
    add_episodes(given.table, trained.task, controller, run, trained.planner, snapshot, episodes, seconds)


def _stopped(given: argparse.Namespace, path: Path, episodes: list[Episode]) -> int:
    """Keep the episodes that are done, and say how to play the others."""
    from dcem_lab.suite.evaluate import write_episodes

    done = len(episodes)
    kept = ""
    if done:
        path = path.with_stem(f"{path.stem}-first-{done}")
        write_episodes(path, episodes)
        kept = f", the {done} finished episodes are in {path}"
        if given.table is not None:
            kept += f" and not in {given.table}"
    words = ["dcem", "eval", given.what]
    others = {**vars(given), "seed": given.seed + done, "episodes": given.episodes - done}
    for name, value in _parser().changed_options(argparse.Namespace(**others)).items():
        words += [name] if value is True else [name, str(value)]
    print(f"stopped{kept}\nplay the others with: {shlex.join(words)}", file=sys.stderr)
    return INTERRUPTED


def _drive_cartpole(given: argparse.Namespace) -> int:
    """Replan after every step, from the states that all cartpole controllers are compared on."""
    check_cartpole_options(_parser(), given, {"--episodes", "--csv"})
    from dcem_lab.cartpole.closed_loop import drive
    from dcem_lab.cartpole.driving import stays_up
    from dcem_lab.cartpole.scores import trajectories
    from dcem_lab.cartpole.shipped import drives, find
    from dcem_lab.runs.files import write_csv

    mpc = find(given.what)
    driven = drive(mpc, given.episodes)
    up, costs = stays_up(driven.states), driven.costs.mean(0)
    path = given.csv or default_path(given.what, "evaluation.csv")
    rows = zip(range(given.episodes), map(int, up), map("{:.4g}".format, costs.tolist()), strict=True)
    write_csv(path, ["state", "stays_up", "cost_a_step"], rows)
    print(f"the pole stays up from {int(up.sum())} of {given.episodes} states, replanning after every step")
    if not drives(given.what):
        print("this decoder was trained to plan once, as in the paper; cartpole-closed-loop can replan")
    print(f"{trajectories(mpc):,} trajectories per plan, median cost per step {costs.median():.4f}")
    print(f"\nall states: {path}")
    return DONE


def check_cartpole_options(parser: Parser, given: argparse.Namespace, fit: set[str]) -> None:
    """UsageError where options are given that a controller of the cartpole does not take."""
    unfit = parser.changed_options(given).keys() - fit
    if given.device == "cpu":  # where it is anyway
        unfit -= {"--device"}
    if unfit:
        raise UsageError(
            f"{', '.join(sorted(unfit))} must be left out for {given.what}: "
            "a cartpole controller plans with the paper's search, on the CPU"
        )


def load_trained(given: argparse.Namespace) -> Trained:
    """What `RUN_OR_NAME`, `--device` and the planner's options ask for."""
    import torch

    from dcem_lab.suite.evaluate import load
    from dcem_lab.training.devices import choose_device

    if given.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device must be cpu here: there is no CUDA device")
    with blamed_on_usage(ValueError):
        return load(given.what, choose_device(given.device), given.snapshot, **_changes(given))


def _changes(given: argparse.Namespace) -> dict[str, Any]:
    """What the options change about the planner."""
    names = [
        "samples", "elites", "iterations", "horizon", "latent_points", "tau", "temperature", "dtype",
        "full_space", "new_decoder",
    ]  # fmt: skip
    return {name: getattr(given, name) for name in names if getattr(given, name) is not None}


def default_path(run_or_name: str, file: str) -> Path:
    """In the run folder, or here with the name of what shipped in front."""
    folder = Path(run_or_name)
    return folder / file if folder.is_dir() else Path(f"{run_or_name}-{file}")


def add_common_options(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """What `dcem eval` and `dcem play` both take; the first may be `optional`."""
    add, words = parser.add_argument, "a run folder, or the name of pretrained weights"
    add("what", metavar="RUN_OR_NAME", help=words, nargs="?" if optional else None)
    # fmt: off
    add("--seed", type=not_negative, default=3_000_000, metavar="K",
        help="seed of the first episode (%(default)s)")
    add("--samples", type=positive, metavar="N", help="N, samples per iteration of the planner")
    add("--elites", type=positive, metavar="k", help="k, elites per iteration")
    add("--iterations", type=not_negative, metavar="T",
        help="T, iterations of the planner; 0 to play the policy alone, if there is one")
    add("--horizon", type=positive, metavar="H",
        help="H, planning horizon in actions; a decoder has its own")
    add("--latent-points", type=positive, metavar="K",
        help="K, latent points per plan, each decoded to a decoder's H actions")
    add("--tau", type=float, metavar="TAU",
        help="temperature of the planner's soft top-k; 0 for the hard one")
    add("--temperature", type=float, metavar="X",
        help="weight elites by a softmax with this temperature instead, as agents with a value do")
    add("--dtype", choices=["float32", "float16", "bfloat16"],
        help="precision of model rollouts; on a CPU float32, or bfloat16 if it has instructions for it")
    add("--full-space", action="store_const", const=True,
        help="plan over action sequences in the model of a latent controller, as the paper's full CEM does")
    add("--new-decoder", type=not_negative, metavar="SEED",
        help="plan in the latent space of an untrained decoder with this seed, to see what training adds")
    add("--snapshot", choices=["best", "last"], default="best",
        help="which weights of a run: best in evaluations, or last (%(default)s)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto",
        help="device for planning; auto uses cuda if available (%(default)s)")
    # fmt: on


def _parser() -> Parser:
    parser = Parser(
        "eval",
        "Evaluate a trained controller without exploration noise. Prints mean, median, quartiles and the\n"
        "interquartile mean with a 95% interval, and writes every episode to a CSV. The planner settings\n"
        "are those of the run unless an option changes them.",
        _EXAMPLES,
    )
    add_common_options(parser, optional=True)
    add = parser.add_argument
    # fmt: off
    add("--episodes", type=positive, default=100, metavar="E", help="number of episodes (%(default)s)")
    add("--at-once", type=positive, metavar="E", help="episodes played in parallel (all)")
    add("--csv", type=Path, metavar="FILE",
        help="CSV file for all episodes (evaluation.csv in the run folder)")
    add("--table", type=Path, metavar="FILE",
        help="also add the episodes to this table of several controllers")
    add("--controller", metavar="NAME",
        help="name of the controller in the table (full-cem or latent-dcem, plus -ppo if fine-tuned)")
    add("--run", metavar="NAME", help="name of the run in the table (its last two folders)")
    add("--merge", type=Path, metavar="OTHER", action="append",
        help="only merge another table into --table, replacing rows of the same controller and run")
    add("--rename", nargs=2, metavar=("OLD", "NEW"), action="append",
        help="only rename a controller, or else a run, of --table, after merging")
    # fmt: on
    return parser

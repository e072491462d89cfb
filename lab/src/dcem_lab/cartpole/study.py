"""Evaluations after the cartpole's trainings: everything its report needs, measured once and stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dcem_lab.cartpole import closed_loop, grid, pictures
from dcem_lab.cartpole.baselines import PAPER, STRONG, expert_or_shipped
from dcem_lab.cartpole.film import film
from dcem_lab.cartpole.scores import plan_scores, read_scores, write_scores
from dcem_lab.cartpole.train import members_of
from dcem_lab.runs import read_record

SHIPPED = ("cartpole-2", "cartpole-8", "cartpole-16")


def complete(run_folders: Sequence[Path], results: Path) -> None:
    """Scores, figure data, closed loop and video of finished grids, in results/cartpole, unless present."""
    root = results / "cartpole"
    for folder in run_folders:
        members = {member.name for member in members_of(read_record(folder)["config"])}
        path = root / "reevaluation.csv"
        known = {score.controller for score in read_scores(path)} if path.exists() else set()
        if not members <= known:
            grid.reevaluate(folder, root)
    _once(root / "pictures" / "dcem_samples.csv", lambda: pictures.write(run_folders, root))
    _once(root / "closed_loop.csv", lambda: closed_loop.write(root))
    _once(root / "videos" / "cartpole.mp4", lambda: film("cartpole", root / "videos" / "cartpole.mp4"))


def score_shipped(path: Path, draws: int = 1) -> Path:
    """The pretrained controllers and two experts, scored on the validation states and on new ones."""
    names = (PAPER, STRONG, *SHIPPED)
    return write_scores(path, (row for n in names for row in plan_scores(n, expert_or_shipped(n), draws)))


def _once(path: Path, make: Callable[[], object]) -> None:
    if not path.exists():
        make()

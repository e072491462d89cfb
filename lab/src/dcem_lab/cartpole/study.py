"""Evaluations after the cartpole's trainings: everything its report needs, measured once and stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dcem_lab.cartpole import closed_loop as cartpole_closed_loop
from dcem_lab.cartpole import grid as cartpole_grid
from dcem_lab.cartpole import pictures as cartpole_pictures
from dcem_lab.cartpole import shipped as cartpole_shipped
from dcem_lab.cartpole.baselines import EXPERTS, PAPER, STRONG, expert_controller
from dcem_lab.cartpole.film import film
from dcem_lab.cartpole.scores import Score, plan_scores, read_scores, write_scores
from dcem_lab.runs import read_record

SHIPPED = ("cartpole-2", "cartpole-8", "cartpole-16")


def complete(run_folders: Sequence[Path], results: Path) -> None:
    """Scores, figure data, closed loop and video of finished grids, in results/cartpole, unless present."""
    root = results / "cartpole"
    for folder in run_folders:
        members = {member.name for member in cartpole_grid.members_of(read_record(folder))}
        path = root / "reevaluation.csv"
        known = {score.controller for score in read_scores(path)} if path.exists() else set()
        if not members <= known:
            cartpole_grid.reevaluate(folder, root)
    _once(root / "pictures" / "dcem_samples.csv", lambda: cartpole_pictures.write(run_folders, root))
    _once(root / "closed_loop.csv", lambda: cartpole_closed_loop.write(root))
    _once(root / "videos" / "cartpole.mp4", lambda: film("cartpole", root / "videos" / "cartpole.mp4"))


def score_shipped(path: Path, draws: int = 1) -> Path:
    """The pretrained controllers and two experts, scored on the validation states and on new ones."""
    rows: list[Score] = []
    for name in (PAPER, STRONG, *SHIPPED):
        mpc = expert_controller(name) if name in EXPERTS else cartpole_shipped.load(name)
        rows += plan_scores(name, mpc, draws)
    return write_scores(path, rows)


def _once(path: Path, make: Callable[[], object]) -> None:
    if not path.exists():
        make()

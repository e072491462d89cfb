"""From which starts the walker's controllers never get up."""

from __future__ import annotations

from pathlib import Path

from dcem_lab.report.sources import read_rows

TASK = "walker-walk"
DOWN = 250  # a return of less: it has not walked
POSES = {"on its back": -90, "leaning back": 0, "leaning forwards": 90, "on its face": 180}
"""At the start, and the most that the torso is turned there, in degrees."""


def start_rows(results: Path) -> list[dict[str, str]]:
    """Episodes of latent controllers, and of full CEM on their model, that stay down, by pose."""
    starts, evaluations = results / "dmc" / "starts" / f"{TASK}.csv", results / "dmc" / "evaluations.csv"
    if not (starts.exists() and evaluations.exists()):
        return []
    pose = {row["episode_seed"]: _pose(float(row["angle"])) for row in read_rows(starts)}
    down: dict[str, list[tuple[str, bool]]] = {}
    for row in read_rows(evaluations):
        start = pose.get(row["episode_seed"])
        if row["task"] == TASK and "latent" in row["controller"] and start is not None:
            down.setdefault(row["controller"], []).append((start, float(row["total"]) < DOWN))
    return [
        {"controller": controller, "stay down": _share([stays for _, stays in episodes])}
        | {name: _share([stays for start, stays in episodes if start == name]) for name in POSES}
        for controller, episodes in down.items()
    ]


def _pose(angle: float) -> str:
    return next(name for name, most in POSES.items() if angle <= most)


def _share(stays: list[bool]) -> str:
    return f"{sum(stays)} of {len(stays)}"

"""From which starts the walker's controllers never get up."""

from __future__ import annotations

from pathlib import Path

from dcem_lab.report.sources import rows_if_any

TASK = "walker-walk"
DOWN = 250  # below this return, the walker has not walked
POSES = {"on its back": -90, "leaning back": 0, "leaning forwards": 90, "on its face": 180}
"""At the start, and the most that the torso is turned there, in degrees."""


def start_rows(results: Path) -> list[dict[str, str]]:
    """Episodes in which latent controllers, and full CEM on their model, stay down, by initial pose."""
    starts = rows_if_any(results / "dmc" / "starts" / f"{TASK}.csv")
    pose = {row["episode_seed"]: _pose(float(row["angle"])) for row in starts}
    down: dict[str, list[tuple[str, bool]]] = {}
    for row in rows_if_any(results / "dmc" / "evaluations.csv"):
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

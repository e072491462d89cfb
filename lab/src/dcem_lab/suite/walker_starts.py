"""How the walker's torso is turned when evaluation episodes begin, and from which starts it never gets up.

    python -m dcem_lab.suite.walker_starts

writes the angles as a CSV. An episode begins with a fall, in a pose drawn at random.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from dcem_lab.report.sources import rows_if_any
from dcem_lab.runs.files import write_csv
from dcem_lab.runs.record import recorded
from dcem_lab.suite.results import read_table

TASK = "walker-walk"
DOWN = 250  # below this return, the walker has not walked
POSES = {"on its back": -90, "leaning back": 0, "leaning forwards": 90, "on its face": 180}
"""At the start, and the most that the torso is turned there, in degrees."""


def angles(seeds: Iterable[int]) -> Iterator[float]:
    """Of the torso, in degrees, from −180 to 180: 0 is upright, forwards positive."""
    from dcem_lab.suite.envs.dmc import make_env  # not to read what was written

    with closing(make_env(TASK)) as env:
        for seed in seeds:
            cosine, sine = env.reset(seed=seed)[0][:2]
            yield math.degrees(math.atan2(sine, cosine))


def write(results: Path) -> Path:
    """The starts of all episodes in the table of evaluations; returns their folder."""
    table = results / "dmc" / "evaluations.csv"
    seeds = sorted({int(seed) for task, *_, seed, _ in read_table(table) if task == TASK})
    if not seeds:
        raise ValueError(f"{table} must have episodes of {TASK}, got none")
    folder = results / "dmc" / "starts"
    with recorded(folder, __spec__.name):
        turned = [f"{angle:.1f}" for angle in angles(seeds)]
        write_csv(folder / f"{TASK}.csv", ["episode_seed", "angle"], zip(seeds, turned, strict=True))
    return folder


def start_rows(results: Path) -> list[dict[str, str]]:
    """Episodes in which latent controllers, and full CEM on their model, stay down, by initial pose."""
    starts = rows_if_any(results / "dmc" / "starts" / f"{TASK}.csv")
    pose = {
        row["episode_seed"]: next(name for name, most in POSES.items() if float(row["angle"]) <= most)
        for row in starts
    }
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


def _share(stays: list[bool]) -> str:
    return f"{sum(stays)} of {len(stays)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="How the walker's evaluation episodes begin, as a CSV.")
    parser.add_argument("--results", type=Path, default=Path("lab/results"))
    print(f"wrote {write(parser.parse_args().results)}")


if __name__ == "__main__":
    main()

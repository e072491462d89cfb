"""Tables about the states in which the walker's latent controller stays down."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dcem_lab.report.sources import rows_if_any

Rows = list[dict[str, str]]
NAME = "walker-walk-dcem"
ITSELF = "latent DCEM"
UP = 1.0
"""Half of the highest reward for a decision: above it, on average, the walker is up."""


def promise_rows(results: Path) -> Rows:
    """The mean return that plans promise, and refined ones in brackets, by search and horizon."""
    rows = [row for row in rows_if_any(results / "dmc" / "down" / f"{NAME}.csv") if float(row["reward"]) < UP]
    found: Rows = []
    for search in dict.fromkeys(row["search"] for row in rows):
        line = {"search": search}
        for horizon in dict.fromkeys(row["horizon"] for row in rows):
            here = [row for row in rows if (row["search"], row["horizon"]) == (search, horizon)]
            promise, refined = (
                np.mean([float(row[name]) for row in here]) for name in ("promise", "refined")
            )
            line[f"{horizon} actions"] = f"{promise:.1f} ({refined:.1f})"
        found.append({**line, "states": str(len(here))})
    return found


def getting_up_rows(results: Path) -> Rows:
    """How many are up, from starts that the shipped controller lost and won, before and after training."""
    files = sorted((results / "dmc" / "getting-up").glob(f"points-*/{NAME}.csv"))
    rows = [row for path in files for row in rows_if_any(path)]
    found: Rows = []
    ways = [(row["latent_points"], row["steps"], row["decisions"]) for row in rows]
    for way in dict.fromkeys(ways):
        line = dict(zip(("latent points", "steps of training", "decisions played"), way, strict=True))
        for start in ("lost", "won"):
            ups = [
                float(row["reward"]) > UP
                for row, its in zip(rows, ways, strict=True)
                if (its, row["start"]) == (way, start)
            ]
            line[f"up at the end, starts {start} before"] = f"{sum(ups)} of {len(ups)}" if ups else "–"
        found.append(line)
    return found


def taking_over_rows(results: Path) -> Rows:
    """Median return of who goes on from the start and from the seat, with the model's promise for the same.

    Beside it, the decisions after which that return stays above the one of the controller itself.
    """
    rewards: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for row in rows_if_any(results / "dmc" / "taking-over" / f"{NAME}.csv"):
        episodes = rewards.setdefault((row["decision"], row["controller"]), {})
        episodes.setdefault(row["episode_seed"], []).append((float(row["reward"]), float(row["promise"])))
    found: Rows = []
    for (decision, who), episodes in rewards.items():
        sums = {seed: np.cumsum(numbers, axis=0) for seed, numbers in episodes.items()}
        own = {seed: np.cumsum(rewards[decision, ITSELF][seed], axis=0) for seed in sums}
        line = {"from decision": decision, "who goes on": who, "episodes": str(len(sums))}
        for h in (12, 24, 36, 48):
            enough = [x[h - 1] for x in sums.values() if len(x) >= h]
            true, promise = np.median(enough, axis=0) if enough else (0.0, 0.0)
            line[f"{h} decisions"] = f"{true:.1f} ({promise:.1f})" if enough else "–"
        line["ahead for good from"] = "–" if who == ITSELF else _ahead(sums, own)
        found.append(line)
    return found


def _ahead(sums: dict[str, np.ndarray], own: dict[str, np.ndarray]) -> str:
    """From which decision on sums stay above others: least, median and most, and in how many episodes."""
    behind = [np.flatnonzero(x[:, 0] <= own[seed][: len(x), 0]).max(initial=-1) for seed, x in sums.items()]
    ahead = [last + 2 for last, x in zip(behind, sums.values(), strict=True) if last + 1 < len(x)]
    share = f"{len(ahead)} of {len(behind)}"
    return f"{min(ahead)}, {np.median(ahead):.0f}, {max(ahead)} ({share})" if ahead else share

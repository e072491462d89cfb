"""Tables about the states in which the walker's latent controller stays down."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dcem_lab.report.sources import rows_if_any

Rows = list[dict[str, str]]
NAME = "walker-walk-dcem"
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
    """How many get up, by the length of plans, before and after training the decoder alone."""
    folder = results / "dmc" / "getting-up"
    rows = rows_if_any(folder / f"{NAME}.csv")
    promises = {
        (row["latent_points"], row["updates"]): row for row in rows_if_any(folder / f"{NAME}-training.csv")
    }
    found: Rows = []
    for points, updates in dict.fromkeys((row["latent_points"], row["updates"]) for row in rows):
        here = [row for row in rows if (row["latent_points"], row["updates"]) == (points, updates)]
        first = next(row for (theirs, _), row in promises.items() if theirs == points)
        promise = promises.get((points, updates), first)
        ups = sum(float(row["reward"]) > UP for row in here)
        found.append(
            {
                "latent points": points,
                "updates": updates,
                "promised per decision, down": f"{float(promise['promise_down']):.2f}",
                "promised per decision, walking": f"{float(promise['promise_up']):.2f}",
                f"up after {here[0]['decisions']} decisions": f"{ups} of {len(here)}",
            }
        )
    return found

"""Decisions in real time on a small machine: their time, and the loss of return."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dcem_lab.report.sources import read_rows

Rows = list[dict[str, str]]
_NAMES = {"": "default", "bfloat16": "in bfloat16", "T4": "in bfloat16, 4 iterations"}
NOT_PLAYED = "–"


def decision_rows(results: Path) -> Rows:
    """The time of a decision on a CPU, the mean return, and that of the same episodes by default."""
    path = results / "realtime" / "decisions.csv"
    if not path.exists():
        return []
    played = _returns(results, "realtime")
    shipped = {**_returns(results, "dmc"), **_returns(results, "agent")}
    rows: Rows = []
    whole = ""
    for row in read_rows(path):
        whole = row["controller"] if row["weights"] != (rows[-1]["weights"] if rows else None) else whole
        before = _of_seed(shipped, row["task"], whole, row["seed"])
        now = (
            before
            if row["controller"] == whole
            else played.get((row["task"], row["controller"], row["weights"]), {})
        )
        same = [before[seed] for seed in now if seed in before]
        rows.append(
            {
                "weights": row["weights"],
                "plans": _NAMES.get(row["controller"].removeprefix(whole).strip("-"), "the policy alone"),
                "trajectories per decision": f"{int(row['trajectories']):,}",
                "ms per decision": f"{float(row['ms']):.1f}",
                "CPU ms": f"{float(row['busy_ms']):.1f}",
                "CPU ms without kernels": f"{float(row['plain_busy_ms']):.1f}"
                if row["plain_busy_ms"]
                else NOT_PLAYED,
                "mean return": f"{np.mean(list(now.values())):.0f}" if now else NOT_PLAYED,
                "episodes": str(len(now)),
                "same episodes, default planner": f"{np.mean(same):.0f}" if same else NOT_PLAYED,
            }
        )
    return rows


def _returns(results: Path, folder: str) -> dict[tuple[str, str, str], dict[str, float]]:
    """Of every task, controller and run, by the seed of the episode."""
    path = results / folder / "evaluations.csv"
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in read_rows(path) if path.exists() else ():
        key = row["task"], row["controller"], row["run"]
        found.setdefault(key, {})[row["episode_seed"]] = float(row["total"])
    return found


def _of_seed(
    returns: dict[tuple[str, str, str], dict[str, float]], task: str, controller: str, seed: str
) -> dict[str, float]:
    """Those of the run with that seed, by its name."""
    for (its_task, its_controller, run), totals in returns.items():
        if (its_task, its_controller) == (task, controller) and run.endswith(f"/seed{seed}"):
            return totals
    return {}

"""Decisions in real time on a small machine: their time, and the loss of return."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dcem_lab.report.sources import rows_if_any
from dcem_lab.suite.numbers import read_episodes, seed_of

NOT_PLAYED = "–"
_NAMES = {"": "default", "bfloat16": "in bfloat16", "T4": "in bfloat16, 4 iterations"}


def decision_rows(results: Path) -> list[dict[str, str]]:
    """The time of a decision on a CPU, the mean return, and that of the same episodes by default."""
    played = read_episodes(results, "realtime")
    runs = read_episodes(results, "dmc") | read_episodes(results, "agent")
    shipped = {(task, controller, seed_of(run)): totals for (task, controller, run), totals in runs.items()}
    default: dict[str, str] = {}  # the controller of some weights that nothing was changed about: the first
    rows = []
    for row in rows_if_any(results / "realtime" / "decisions.csv"):
        task, controller, weights = row["task"], row["controller"], row["weights"]
        whole = default.setdefault(weights, controller)
        before = shipped.get((task, whole, row["seed"]), {})
        now = before if controller == whole else played.get((task, controller, weights), {})
        rows.append(
            {
                "weights": weights,
                "plans": _NAMES.get(controller.removeprefix(whole).strip("-"), "the policy alone"),
                "trajectories per decision": f"{int(row['trajectories']):,}",
                "ms per decision": _time(row["ms"]),
                "CPU ms": _time(row["busy_ms"]),
                "CPU ms without kernels": _time(row["plain_busy_ms"]),
                "mean return": _mean([*now.values()]),
                "episodes": str(len(now)),
                "same episodes, default planner": _mean([before[seed] for seed in now if seed in before]),
            }
        )
    return rows


def _time(ms: str) -> str:
    return f"{float(ms):.1f}" if ms else NOT_PLAYED


def _mean(returns: list[float]) -> str:
    return f"{np.mean(returns):.0f}" if returns else NOT_PLAYED

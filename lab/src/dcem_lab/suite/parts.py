"""What the parts of a planner with a value are worth: returns of the same weights, planned in other ways."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dcem_lab.report.sources import rows_if_any
from dcem_lab.report.statistics import bootstrap
from dcem_lab.suite.numbers import read_episodes, seed_of

FOLDER = "parts"
POLICY, TRAINED = "policy", "latent-dcem-value"
_NAMES = {
    POLICY: "the policy alone",
    "full-cem-value-500": "search over actions",
    "full-cem-value": "search over actions",
    TRAINED: "latent search",
    f"{TRAINED}-untrained": "latent search, untrained decoder",
}
_RESAMPLES = 10_000

Episodes = Mapping[str, float]
"""Returns by the seed of the episode."""


def part_rows(results: Path) -> list[dict[str, str]]:
    """Mean returns, and what they are more than those of the policy and of the trained decoder.

    Differences are between episodes of the same seed. Runs of one controller, which differ in the seed of an
    untrained decoder, are averaged episode by episode.
    """
    table = rows_if_any(results / FOLDER / "evaluations.csv")
    sampled = {
        (row["run"].split("/")[0], row["controller"]): int(row["samples"]) * int(row["iterations"])
        for row in table
    }
    found: dict[tuple[str, str], dict[str, Episodes]] = {}
    for (_, controller, run), episodes in read_episodes(results, FOLDER).items():
        weights = run.split("/")[0]
        found.setdefault((weights, controller), {})[run] = episodes
    order = {name: i for i, name in enumerate(_NAMES)}
    rows = []
    for weights, controller in sorted(found, key=lambda key: (key[0], order.get(key[1], len(order)), key[1])):
        runs = found[weights, controller]
        means = [float(np.mean([*episodes.values()])) for episodes in runs.values()]
        seeds = f" (seeds {', '.join(map(seed_of, runs))})" if len(runs) > 1 else ""
        rows.append(
            {
                "weights": weights,
                "plans": _NAMES.get(controller, controller) + seeds,
                "trajectories per decision": f"{sampled[weights, controller]:,}",
                "episodes": str(len(_averaged(runs))) + (f" × {len(runs)}" if len(runs) > 1 else ""),
                "mean return": ", ".join(f"{mean:.0f}" for mean in means),
                **{
                    f"more than {_NAMES[base]}": _difference(runs, found.get((weights, base), {}))
                    if controller != base
                    else ""
                    for base in (POLICY, TRAINED)
                },
            }
        )
    return rows


def _averaged(runs: Mapping[str, Episodes]) -> dict[str, float]:
    """The mean over runs of every episode that all of them played."""
    played = [set(episodes) for episodes in runs.values()]
    every = sorted(set.intersection(*played)) if played else []
    return {seed: float(np.mean([episodes[seed] for episodes in runs.values()])) for seed in every}


def _difference(runs: Mapping[str, Episodes], base: Mapping[str, Episodes]) -> str:
    """With a 95% interval over the episodes that both played."""
    ours, theirs = _averaged(runs), _averaged(base)
    both = [seed for seed in ours if seed in theirs]
    if not both:
        return "–"
    value, low, high = bootstrap(np.array([ours[s] - theirs[s] for s in both]), np.mean, _RESAMPLES)
    return f"{value:+.0f} [{low:+.0f}, {high:+.0f}]"

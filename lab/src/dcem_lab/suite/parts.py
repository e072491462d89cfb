"""What the parts of a planner with a value are worth: returns of the same weights, planned in other ways."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dcem_lab.report.sources import rows_if_any
from dcem_lab.report.statistics import bootstrap
from dcem_lab.suite.numbers import read_episodes, read_questions, seed_of

FOLDER = "parts"
POLICY, TRAINED = "policy", "latent-dcem-value"
_RESAMPLES = 10_000

Episodes = Mapping[str, float]
"""Returns by the seed of the episode."""

Ways = dict[tuple[str, str, int], dict[str, Episodes]]
"""Episodes by run, of all weights, controllers and trajectories per decision."""


def part_rows(results: Path) -> list[dict[str, str]]:
    """Mean returns, and how much more they are than those of the policy and of the trained decoder.

    Differences are between episodes of the same seed; from the decoder, with as many trajectories. Runs of
    one controller, which differ in the seed of an untrained decoder, are averaged episode by episode.
    """
    found = _measured(results)
    if not found:
        return []
    names = read_questions(results)["parts"]  # in the order of the rows
    for way, runs in _as_shipped(results).items():
        if way[1] in names:
            found.setdefault(way, runs)

    def place(way: tuple[str, str, int]) -> tuple[str, int, int]:
        weights, controller, trajectories = way
        return weights, trajectories, [*names].index(controller)

    rows = []
    for weights, controller, trajectories in sorted(found, key=place):
        runs = found[weights, controller, trajectories]
        seeds = f" (seeds {', '.join(map(seed_of, runs))})" if len(runs) > 1 else ""
        rows.append(
            {
                "weights": weights,
                "plans": names[controller] + seeds,
                "trajectories per decision": f"{trajectories:,}",
                "episodes": ", ".join(str(len(episodes)) for episodes in runs.values()),
                "mean return": ", ".join(f"{np.mean([*one.values()]):.0f}" for one in runs.values()),
                **{
                    f"more than {names[base]}": _difference(runs, found.get((weights, base, n), {}))
                    if controller != base
                    else ""
                    for base, n in ((POLICY, 0), (TRAINED, trajectories))
                },
            }
        )
    return rows


def _measured(results: Path) -> Ways:
    """Those that were measured for this comparison; a number behind a controller's name is no part of it."""
    found: Ways = {}
    episodes = read_episodes(results, FOLDER)
    for row in rows_if_any(results / FOLDER / "evaluations.csv"):
        controller = re.sub(r"-\d+$", "", row["controller"])
        way = row["run"].split("/")[0], controller, int(row["samples"]) * int(row["iterations"])
        found.setdefault(way, {})[row["run"]] = episodes[row["task"], row["controller"], row["run"]]
    return found


def _as_shipped(results: Path) -> Ways:
    """Controllers with a value as they ship, and their policies, from the tables that have them."""
    shipped = {
        (task, name, seed_of(run)): x for (task, name, run), x in read_episodes(results, "agent").items()
    }
    policies = read_episodes(results, "realtime")
    found: Ways = {}
    for row in rows_if_any(results / "realtime" / "decisions.csv"):
        task, controller, weights = row["task"], row["controller"], row["weights"]
        episodes = shipped.get((task, controller, row["seed"]))
        if controller == POLICY:
            episodes = policies.get((task, controller, weights))
        if episodes:
            found[weights, controller, int(row["trajectories"])] = {weights: episodes}
    return found


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

"""How the walker's torso is turned when its evaluation episodes begin, as a CSV.

    python -m dcem_lab.suite.walker_starts

An episode begins with a fall, in a pose drawn at random. `dcem_lab.suite.starts` holds the angles
against the returns.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from dcem_lab.runs import facts
from dcem_lab.runs.files import write_csv
from dcem_lab.runs.record import write_record
from dcem_lab.suite.envs.dmc import make_env
from dcem_lab.suite.results import read_table

TASK = "walker-walk"


def angles(seeds: Iterable[int]) -> Iterator[float]:
    """Of the torso, in degrees, from −180 to 180: 0 is upright, forwards positive."""
    with closing(make_env(TASK)) as env:
        for seed in seeds:
            cosine, sine = env.reset(seed=seed)[0][:2]
            yield math.degrees(math.atan2(sine, cosine))


def write(results: Path) -> Path:
    """The starts of all episodes in the table of evaluations; returns their folder."""
    began, started = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    table = results / "dmc" / "evaluations.csv"
    seeds = sorted({int(seed) for task, *_, seed, _ in read_table(table) if task == TASK})
    if not seeds:
        raise ValueError(f"{table} must have episodes of {TASK}, got none")
    folder = results / "dmc" / "starts"
    turned = [f"{angle:.1f}" for angle in angles(seeds)]
    write_csv(folder / f"{TASK}.csv", ["episode_seed", "angle"], zip(seeds, turned, strict=True))
    record = {
        "command": f"python -m {__spec__.name}",
        "started": started,
        **facts.here(),
        "wall_seconds": round(time.perf_counter() - began, 3),
    }
    write_record(folder, record)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="How the walker's evaluation episodes begin, as a CSV.")
    parser.add_argument("--results", type=Path, default=Path("lab/results"))
    print(f"wrote {write(parser.parse_args().results)}")


if __name__ == "__main__":
    main()

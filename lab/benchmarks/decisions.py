"""Can the controllers that ship plan in real time on a small machine? The time of one decision on a CPU.

    export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive
    python benchmarks/decisions.py --output results/realtime/decisions.csv

Milliseconds of `Agent.act`, from an observation to an action, as a controller ships and in less: `ms` on the
clock, and `busy_ms` that the deciding thread computed. The second is what the first would be on a machine
without other work, as long as threads that wait do not count as busy (OMP_WAIT_POLICY=passive).
`plain_busy_ms` is the same without kernels in C++.
A run replaces the rows of its own device and keeps the others.
"""

import os
import platform
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from rows import options, origin, put

from dcem_lab import Agent, pretrained
from dcem_lab.suite.agents import planner
from dcem_lab.suite.results import controller_of

WEIGHTS = (
    "cheetah-run-dcem",
    "cheetah-run-dcem-ppo",
    "walker-walk-dcem",
    "walker-walk-dcem-ppo",
    "cheetah-run-value-dcem",
    "cheetah-run-value",
    "walker-walk-value",
)
BFLOAT16 = {"dtype": "bfloat16"}
DECISIONS = 40


def ways(weights: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names, as in the table of evaluations, and changes to the planner."""
    whole = controller_of(Agent.load(weights).trained)
    yield whole, {}
    yield f"{whole}-bfloat16", BFLOAT16
    if whole == "full-cem-value":
        yield f"{whole}-T4", {**BFLOAT16, "iterations": 4}
        yield "policy", {"iterations": 0}


def decide(agent: Agent, decisions: int) -> tuple[float, float]:
    """Milliseconds of a decision, on the clock and of the thread: medians."""
    random, passed, busy = np.random.default_rng(0), [], []
    for i in range(decisions + 2):
        observation = random.standard_normal(agent.trained.model.obs_dim)
        start, started = time.perf_counter(), time.thread_time()
        for _ in range(agent.action_repeat):  # one decision, held
            agent.act(observation)
        if i >= 2:
            passed.append(time.perf_counter() - start)
            busy.append(time.thread_time() - started)
    return 1000 * statistics.median(passed), 1000 * statistics.median(busy)


def without_kernels(weights: str, changes: dict[str, Any]) -> Agent:
    found = planner.has_kernels
    planner.has_kernels = lambda *_: False
    try:
        return Agent.load(weights, **changes)
    finally:
        planner.has_kernels = found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=WEIGHTS, help="only these (all)")
    parser.add_argument("--decisions", type=int, default=DECISIONS, help="how many of each (%(default)s)")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for weights in given.weights:
        for controller, changes in ways(weights):
            agent = Agent.load(weights, **changes)
            config = agent.trained.planner
            ms, busy = decide(agent, given.decisions)
            plain = decide(without_kernels(weights, changes), 8)[1] if changes != BFLOAT16 else None
            rows.append(
                {
                    "task": agent.trained.task,
                    "controller": controller,
                    "weights": weights,
                    "seed": pretrained.load(weights)[0]["config"]["seed"],
                    "dtype": config.dtype,
                    "trajectories": (config.samples + config.policy_plans) * config.iterations,
                    "ms": round(ms, 2),
                    "busy_ms": round(busy, 2),
                    "plain_busy_ms": "" if plain is None else round(plain, 2),
                    **origin(torch.device("cpu")),
                    "python": platform.python_version(),
                    "threads": torch.get_num_threads(),
                    "load": round(os.getloadavg()[0], 1),
                }
            )
            print(*rows[-1].values(), sep="  ", flush=True)
    put(given.output, rows, same=("device", "weights", "controller"))


if __name__ == "__main__":
    main()

"""What one decision costs: the time in which the controllers that ship plan an action.

    OMP_NUM_THREADS=2 python benchmarks/planning.py --output results/dmc/planning.csv

Milliseconds from model states on the device to actions on the host, for one state and for many at once, by
every controller as it ships, and by full CEM with the 1,000 trajectories that the paper gives a latent plan,
and the 500 that ours have.
A row says which device it was measured on; a run replaces the rows of its own device and keeps the others.
"""

import os
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from rows import options, origin, put
from torch import Generator

from dcem_lab import pretrained
from dcem_lab.suite.agents import PlannerConfig
from dcem_lab.suite.agents.planner import Planner
from dcem_lab.suite.results import CONTROLLERS, controller_of
from dcem_lab.suite.trained import Trained, load
from dcem_lab.training.devices import choose_device

STATES = (1, 16)
FEW = {"100": 10, "100-T5": 5}  # iterations with 100 samples: of the paper's latent plan, and of ours
WARMUP, REPEATS = 1, 3  # calls before, and at least
SECONDS = {"cpu": 15.0, "cuda": 1.0}  # for more of them


def controllers(names: list[str]) -> Iterator[tuple[str, str, Trained, PlannerConfig]]:
    """Name of the weights, name of the controller, the controller, and how it plans."""
    for weights in names:
        experiment = pretrained.load(weights)[0].get("experiment")
        if experiment in CONTROLLERS:
            source = load(weights)
            controller = controller_of(source)
            yield weights, controller, source, source.planner
            for name, iterations in FEW.items() if controller == "full-cem" else ():
                few = replace(source.planner, samples=100, elites=10, iterations=iterations)
                yield weights, f"{controller}-{name}", source, few


@torch.no_grad()
def milliseconds(source: Trained, config: PlannerConfig, states: int, device: torch.device) -> float:
    """Of one decision, the median."""
    source, generator = source.to(device), Generator(device).manual_seed(0)
    model = source.model
    plan = Planner(model, config, source.decoder, generator, source.value)
    observed = model.initial(torch.randn(states, model.obs_dim, device=device, generator=generator))
    for _ in range(WARMUP):
        plan(observed).cpu()
    times: list[float] = []
    while len(times) < REPEATS or sum(times) < SECONDS[device.type]:
        start = time.perf_counter()
        plan(observed).cpu()  # the copy waits for the device
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    names = pretrained.available()
    parser.add_argument("--weights", nargs="+", choices=names, default=names, help="only these (all)")
    given = parser.parse_args()
    device, load = choose_device(given.device), os.getloadavg()[0]  # other work that will share the machine
    rows: list[dict[str, Any]] = []
    for weights, controller, source, config in controllers(given.weights):
        candidates = config.samples + config.policy_plans
        row: dict[str, Any] = {
            "task": source.task,
            "controller": controller,
            "weights": weights,
            "samples": candidates,
            "iterations": config.iterations,
            "trajectories": candidates * config.iterations,
        }
        for states in STATES:
            row[f"ms_{states}"] = round(milliseconds(source, config, states, device), 3)
        print(*row.values(), sep="  ", flush=True)
        rows.append(row)
    about = {
        "kind": device.type,
        **origin(device),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "load": round(load, 1),
    }
    put(given.output, [row | about for row in rows], same=("device", "weights", "controller"))


if __name__ == "__main__":
    main()

"""What a whole training update costs beside the bare evaluations in it: the paper's two small experiments.

    python benchmarks/updates.py

An update plans (N=100, T=10), differentiates and takes a step of Adam. The bare work is forward and backward
of the objective alone on as many candidates: the energy network, or decoder and cartpole. Milliseconds of
CPU time, medians of runs that take turns; the rows go to results/cpu/updates.csv.
"""

import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from dcem import Argmin
from dcem.systems.cartpole import Cartpole
from dcem_lab.cartpole import train as cartpole
from dcem_lab.cartpole.stack import DecoderStack
from dcem_lab.regression import experiment as regression
from dcem_lab.regression.energy import EnergyNetwork
from dcem_lab.training.members import MemberAdam

RESULTS = Path(__file__).parent / "results" / "updates.csv"
ITERATIONS, SAMPLES, ROUNDS = 10, 100, 150


def regression_update(seeds: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """One update on one point, of so many networks side by side, and the bare work."""
    config = regression.Config(seeds=seeds)
    energy = EnergyNetwork(1, 1, config.hidden, members=seeds)
    parameters = list(energy.parameters())
    optimizer = MemberAdam(parameters, config.lr, config.clip)
    model = Argmin(energy, regression.solver_for(config), 1)
    update = regression.Update(config, model, optimizer, torch.Generator().manual_seed(0))
    x, y = torch.full((seeds, 1, 1), 2.0), torch.full((seeds, 1, 1), 1.8)
    candidates = [config.sigma * torch.randn(seeds, 1, SAMPLES, 1) for _ in range(ITERATIONS)]

    def bare() -> None:
        total = sum(energy(x.unsqueeze(-2), y).sum() for y in candidates)
        torch.autograd.grad(total, parameters)

    return lambda: update(x, y), bare


def cartpole_update(compiled: bool) -> tuple[Callable[[], object], Callable[[], object]]:
    """One update from one state with 8 latent dimensions, and the bare work, both compiled or neither."""
    config = cartpole.Config(compile=compiled, states_per_update=1, device="cpu")
    stack = DecoderStack([cartpole.new_decoder(cartpole.Member(8, 1.0, 0), config)])
    mpc = cartpole.controller(stack, [1.0], config)
    parameters = list(stack.parameters())
    optimizer = MemberAdam(parameters, config.lr, config.max_grad_norm)
    state = Cartpole.initial_states(1, 1, generator=torch.Generator().manual_seed(0))
    candidates = [torch.rand(1, 1, SAMPLES, 8) * 2 - 1 for _ in range(ITERATIONS)]
    cost = torch.compile(mpc.total_cost) if compiled else mpc.total_cost

    def update() -> None:
        optimizer.step(torch.autograd.grad(mpc(state).cost.sum(), parameters))

    def bare() -> None:
        total = sum(cost(z, state).sum() for z in candidates)
        torch.autograd.grad(total, parameters)

    return update, bare


def measure(update: Callable[[], object], bare: Callable[[], object]) -> tuple[float, float]:
    """Median milliseconds of each."""
    times: dict[str, list[float]] = {"update": [], "bare": []}
    for _ in range(ROUNDS + 5):
        for name, work in (("update", update), ("bare", bare)):
            start = time.process_time()
            work()
            times[name].append(1000 * (time.process_time() - start))
    return statistics.median(times["update"][5:]), statistics.median(times["bare"][5:])


def main() -> None:
    torch.set_num_threads(1)
    cases = [
        *((f"regression, {n} networks side by side", regression_update(n)) for n in (1, 3)),
        *((f"cartpole, {'compiled' if c else 'eager'}", cartpole_update(c)) for c in (False, True)),
    ]
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", "update_ms", "bare_ms", "ratio"])
        for name, (update, bare) in cases:
            mine, theirs = measure(update, bare)
            row = [name, f"{mine:.2f}", f"{theirs:.2f}", f"{mine / theirs:.2f}"]
            print(*row, sep="  ")
            writer.writerow(row)


if __name__ == "__main__":
    main()

"""What a whole training update costs beside the bare evaluations in it: the paper's two small experiments.

    python benchmarks/updates.py

An update plans (N=100, T=10), differentiates and takes a step of Adam. The bare work is forward and backward
of the objective alone on as many candidates: the energy network, or decoder and cartpole, with gradients to
their parameters. `candidates_ms` is the same with gradients to the candidates too, which an update needs.
Milliseconds of CPU time, medians of runs that take turns; the rows go to results/updates.csv.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rows import origin
from torch import Tensor

from dcem import Argmin, capture
from dcem.systems.cartpole import Cartpole
from dcem_lab.cartpole import train as cartpole
from dcem_lab.cartpole.stack import DecoderStack
from dcem_lab.regression import experiment as regression
from dcem_lab.regression.energy import EnergyNetwork
from dcem_lab.runs.files import write_csv
from dcem_lab.training.members import MemberAdam

RESULTS = Path(__file__).parent / "results" / "updates.csv"
ITERATIONS, SAMPLES, ROUNDS = 10, 100, 150
Works = dict[str, Callable[[], object]]


def regression_update(seeds: int, compiled: bool) -> Works:
    """One update on one point, of so many networks side by side, and the bare work, both compiled or not."""
    config = regression.Config(seeds=seeds)
    energy = EnergyNetwork(1, 1, config.hidden, members=seeds)
    parameters = list(energy.parameters())
    optimizer = MemberAdam(parameters, config.lr, config.clip)
    model = Argmin(energy, regression.solver_for(config), 1)
    learn = partial(regression.learn, config, model, optimizer, torch.Generator().manual_seed(0))
    x, y = torch.full((seeds, 1, 1), 2.0), torch.full((seeds, 1, 1), 1.8)
    candidates = [config.sigma * torch.randn(seeds, 1, SAMPLES, 1) for _ in range(ITERATIONS)]

    update, network = (capture(learn), torch.compile(energy)) if compiled else (learn, energy)
    return {"update": lambda: update(x, y)} | bare(
        lambda y: network(x.unsqueeze(-2), y), parameters, candidates
    )


def cartpole_update(compiled: bool) -> Works:
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

    return {"update": update} | bare(lambda z: cost(z, state), parameters, candidates)


def bare(f: Callable[[Tensor], Tensor], parameters: list[Tensor], candidates: list[Tensor]) -> Works:
    """The evaluations alone, with gradients to the parameters, and also to the candidates."""
    free = [x.clone().requires_grad_() for x in candidates]

    def evaluate(points: list[Tensor], wanted: list[Tensor]) -> None:
        torch.autograd.grad(sum(f(x).sum() for x in points), wanted)

    return {
        "bare": lambda: evaluate(candidates, parameters),
        "candidates": lambda: evaluate(free, [*parameters, *free]),
    }


def measure(works: Works) -> dict[str, float]:
    """Median milliseconds of each, and the median over the rounds of the update's ratio to each."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(ROUNDS + 5):
        for name, work in works.items():
            start = time.process_time()
            work()
            if turn >= 5:
                times[name].append(1000 * (time.process_time() - start))
    update, *rest = works
    ratios = {
        f"ratio_to_{name}": statistics.median(a / b for a, b in zip(times[update], times[name], strict=True))
        for name in rest
    }
    return {f"{name}_ms": statistics.median(took) for name, took in times.items()} | ratios


def main() -> None:
    torch.set_num_threads(1)
    modes = {"eager": False, "compiled": True}
    cases = [
        *((f"regression, {mode}", regression_update(1, modes[mode])) for mode in modes),
        *((f"regression, three networks, {mode}", regression_update(3, modes[mode])) for mode in modes),
        *((f"cartpole, {mode}", cartpole_update(modes[mode])) for mode in modes),
    ]
    rows = []
    for name, works in cases:
        found = {key: f"{value:.2f}" for key, value in measure(works).items()}
        rows.append({"case": name, **found, **origin(torch.device("cpu"))})
        print(*rows[-1].values(), sep="  ", flush=True)
    write_csv(RESULTS, list(rows[0]), ([*row.values()] for row in rows))


if __name__ == "__main__":
    main()

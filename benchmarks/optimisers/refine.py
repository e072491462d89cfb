"""What gradient steps inside a search save: evaluations to the same quality, with `Refine` and without.

    python benchmarks/optimisers/refine.py --problems sphere cartpole

Smooth functions of BBOB's kind, shifted and rotated, and plans for the cartpole with its exact model. A
gradient counts as two evaluations, beside the one at its point.
"""

import argparse
import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE.parent)]

import dcem  # noqa: E402
from dcem.systems import Cartpole  # noqa: E402
from machine import machine  # noqa: E402

GRADIENT = 3  # evaluations that one evaluation with its gradient counts as
ROWS = 32  # problems, of which the median counts; for the cartpole states, of which the mean does
Objective = Callable[[Tensor], Tensor]


def _rosenbrock(z: Tensor) -> Tensor:
    z = z + 1
    return (100 * (z[..., 1:] - z[..., :-1].square()).square() + (1 - z[..., :-1]).square()).sum(-1)


# Of points z whose optimum is 0, (*B, N, n) -> (*B, N).
SHAPES: dict[str, Objective] = {
    "sphere": lambda z: z.square().sum(-1),
    "ellipsoid": lambda z: (torch.logspace(0, 4, z.shape[-1]) * z.square()).sum(-1),
    "discus": lambda z: 1e4 * z[..., 0].square() + z[..., 1:].square().sum(-1),
    "bent cigar": lambda z: z[..., 0].square() + 1e4 * z[..., 1:].square().sum(-1),
    "different powers": lambda z: z.abs().pow(torch.linspace(2, 6, z.shape[-1])).sum(-1),
    "Rosenbrock": _rosenbrock,
}


def function(name: str, n: int = 10) -> tuple[Objective, Tensor, float, str]:
    """An objective, where to start, the first spread, and the quality to reach."""
    generator = torch.Generator().manual_seed(0)
    rotation = torch.linalg.qr(torch.randn(ROWS, n, n, generator=generator)).Q
    shift = 4 * torch.rand(ROWS, 1, n, generator=generator) - 2
    return lambda x: SHAPES[name]((x - shift) @ rotation), torch.zeros(ROWS, n), 2.0, "1e-6"


def cartpole(quality: str) -> tuple[Objective, Tensor, float, str]:
    """Plans of 20 forces."""
    states = Cartpole.initial_states(ROWS, generator=torch.Generator().manual_seed(0))
    mpc = dcem.MPC(Cartpole(), 20, -100.0, 100.0, solver=dcem.DCEM())
    return lambda x: mpc.total_cost(x, states), torch.zeros(ROWS, 20), 100.0, quality


PROBLEMS: dict[str, Callable[[], tuple[Objective, Tensor, float, str]]] = {
    **{name: lambda name=name: function(name) for name in SHAPES},
    "cartpole, cost -8": lambda: cartpole("-8"),
    "cartpole, cost -10": lambda: cartpole("-10"),
}
BUDGET = 20_000
Refinement = dcem.Refine | None
SOLVERS: dict[str, Callable[[int, dcem.Gaussian | dcem.FullGaussian, Refinement], dcem.Solver]] = {
    "DCEM, N=100": lambda T, d, r: dcem.DCEM(n_iters=T, distribution=d, refine=r),
    "DCEM, N=20": lambda T, d, r: dcem.DCEM(n_samples=20, n_elite=5, n_iters=T, distribution=d, refine=r),
    "DCEM, full, N=20": lambda T, d, r: dcem.DCEM(
        n_samples=20, n_elite=5, n_iters=T, distribution=dcem.FullGaussian(d.sigma, d.bounds), refine=r
    ),
    "CMAES": lambda T, d, r: dcem.CMAES(
        n_iters=T, distribution=dcem.FullGaussian(d.sigma, d.bounds), refine=r
    ),
}


def evaluations(problem: str, solver: str, refine: Refinement) -> int | None:
    """How many one search takes until its best samples are good enough; None: more than the budget."""
    f, x0, sigma, quality = PROBLEMS[problem]()
    bounds = (-100.0, 100.0) if "cartpole" in problem else None
    make = SOLVERS[solver]
    distribution = dcem.Gaussian(sigma, bounds)
    per_iteration = make(1, distribution, None).samples(x0.shape[-1])
    per_iteration += 0 if refine is None else GRADIENT * refine.n
    iterations = BUDGET // per_iteration
    best = torch.full(x0.shape[:-1], torch.inf)
    spent = None

    class Enough(Exception):  # noqa: N818
        pass

    def watch(record: dcem.Record) -> None:
        nonlocal best, spent
        best = torch.minimum(best, record.values.amin(-1))
        reached = best.mean() if "cartpole" in problem else best.median()
        if reached <= float(quality):
            spent = (record.iteration + 1) * per_iteration
            raise Enough

    with torch.no_grad():
        try:
            search = make(iterations, distribution, refine)
            generator = torch.Generator().manual_seed(0)
            dcem.minimize(f, search, x0, generator=generator, callback=watch, cost=False)
        except Enough:
            pass
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "refine.csv")
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    facts = machine(threads=1) | {"torch": torch.__version__, "problems": args.problems}
    args.out.with_suffix(".json").write_text(json.dumps(facts, indent=2) + "\n")
    with args.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["problem", "quality", "solver", "evaluations", "with Refine()", "times fewer"])
        for problem in args.problems:
            for solver in SOLVERS:
                plain, refined = (evaluations(problem, solver, r) for r in (None, dcem.Refine()))
                ratio = "" if plain is None or refined is None else f"{plain / refined:.1f}"
                shown = ["more" if count is None else count for count in (plain, refined)]
                row = [problem.split(",")[0], PROBLEMS[problem]()[-1], solver, *shown, ratio]
                writer.writerow(row)
                file.flush()
                print(row, flush=True)


if __name__ == "__main__":
    main()

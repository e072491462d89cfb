"""theseus-ai: Levenberg–Marquardt, unrolled and implicit, its DCEM, and its LML."""

from collections.abc import Callable

import theseus
import torch
from theseus.third_party.lml import LML
from torch import Tensor

from budgets import BUDGETS
from energies import ENERGIES, Projection
from judging import BATCH, Layer, Torch, serve


def layers(problem: str) -> dict[str, Layer]:
    if problem == "projection":
        project = LML(N=Projection.k)
        return {"theseus LML": Torch(lambda theta: Projection.c * project(theta))}
    n_samples, n_elite, n_iters = BUDGETS[problem]
    sigma = ENERGIES[problem].sigma

    # A row whose step is rejected while another's is accepted has not changed, and counts as converged there.
    # Where that happens, all iterations are run.
    never = {"abs_err_tolerance": 0.0, "rel_err_tolerance": 0.0} if problem == "pendulum" else {}

    def descent(objective: theseus.Objective) -> theseus.LevenbergMarquardt:
        return theseus.LevenbergMarquardt(objective, max_iterations=50, **never)

    def sampling(objective: theseus.Objective) -> theseus.DCEM:
        return theseus.DCEM(
            objective,
            max_iterations=n_iters,
            n_sample=n_samples,
            n_elite=n_elite,
            init_sigma=sigma,
            temp=10.0,  # it multiplies: the temperature 0.1
        )

    adaptive = {"damping": 0.1, "adaptive_damping": True}
    return {
        "theseus LM, unrolled": layer(problem, descent, backward_mode="unroll", **adaptive),
        "theseus LM, implicit": layer(problem, descent, backward_mode="implicit", **adaptive),
        # Its pendulum keeps half a gigabyte for every problem.
        "theseus DCEM": layer(
            problem, sampling, most=4 if problem == "pendulum" else BATCH, backward_mode="unroll"
        ),
    }


def layer(
    problem: str,
    optimiser: Callable[[theseus.Objective], object],
    most: int = BATCH,
    **options: object,
) -> Layer:
    energy = ENERGIES[problem](torch)
    x, theta = (
        theseus.Vector(size, name=name, dtype=torch.float64)
        for name, size in (("x", energy.n), ("theta", energy.m))
    )

    def residuals(optim_vars: tuple[theseus.Vector, ...], aux_vars: tuple[theseus.Vector, ...]) -> Tensor:
        return energy.residuals(optim_vars[0].tensor.unsqueeze(-2), aux_vars[0].tensor).squeeze(-2)

    count = energy.residuals(torch.zeros(1, 1, energy.n), torch.zeros(1, energy.m)).shape[-1]
    objective = theseus.Objective(dtype=torch.float64)
    weight = theseus.ScaleCostWeight(torch.ones(1, 1, dtype=torch.float64))
    objective.add(theseus.AutoDiffCostFunction([x], residuals, count, weight, aux_vars=[theta]))
    solve = theseus.TheseusLayer(optimiser(objective))

    def function(theta: Tensor) -> Tensor:
        start = theta.new_zeros(len(theta), energy.n)
        return solve.forward({"x": start, "theta": theta}, optimizer_kwargs=options)[0]["x"]

    return Torch(function, most)


if __name__ == "__main__":
    serve(layers, packages=("theseus-ai",))

"""theseus-ai: its LML and its DCEM, through their public interfaces and with their default accuracies."""

import theseus
import torch
from theseus.third_party.lml import LML

import problems
from measure import Job, serve


def lml(problem: problems.TopK) -> Job:
    project = LML(N=problem.k)
    return Job(lambda: project(problem.x), problem.parameters)


def dcem(problem: problems.Quadratic, temp: float | None = 1.0, lml_eps: float = 1e-3) -> Job:
    """`temp` multiplies the values: it is 1/τ, and None is its hard selection; `lml_eps` has its default."""
    dtype, n = problem.x0.dtype, problem.x0.shape[-1]
    objective = theseus.Objective(dtype=dtype)
    x, centre = theseus.Vector(n, name="x", dtype=dtype), theseus.Vector(n, name="centre", dtype=dtype)
    unit = theseus.ScaleCostWeight(torch.ones(1, 1, dtype=dtype))
    objective.add(theseus.Difference(x, centre, unit))  # its cost is ½‖x − centre‖²
    solver = theseus.DCEM(
        objective,
        max_iterations=problem.n_iters,
        n_sample=problem.n_samples,
        n_elite=problem.n_elite,
        temp=temp,
        init_sigma=problem.sigma,
        lml_eps=lml_eps,
        abs_err_tolerance=0.0,  # every iteration is run: nobody else stops early
        rel_err_tolerance=0.0,
    )
    layer = theseus.TheseusLayer(solver, vectorize=False)  # with vectorize=True it is slower still

    def forward() -> torch.Tensor:
        solution, _ = layer.forward({"x": problem.x0, "centre": problem.centre})
        return solution["x"]

    return Job(forward, problem.parameters)


if __name__ == "__main__":
    serve({"lml": lml, "dcem": dcem}, packages=("theseus-ai",))

"""Small solvers of every kind, their noise, and a wavy objective for them."""

import torch
from torch import Tensor

from dcem import CMAES, DCEM, IPOP, MPPI, FullGaussian, Gaussian, GradientDescent, Refine
from problems import sphere

TARGET = torch.tensor([0.4, -0.3], dtype=torch.float64)
SOLVERS = {
    "soft": DCEM(n_samples=20, n_elite=5, n_iters=4, tau=0.5),
    "hard": DCEM(n_samples=20, n_elite=5, n_iters=4, tau=0),
    "best": DCEM(n_samples=20, n_elite=5, n_iters=4, returns="best"),
    "full": DCEM(n_samples=20, n_elite=5, n_iters=4, distribution=FullGaussian()),
    "squash": DCEM(n_samples=20, n_iters=4, distribution=Gaussian(bounds=(-2.0, 2.0), boundary="squash")),
    "elites": DCEM(n_samples=20, n_elite=5, n_iters=4, keep_elites=3),
    "paper": DCEM(
        n_samples=20,
        n_elite=5,
        n_iters=4,
        tau=1.0,
        normalize=True,
        distribution=Gaussian(estimator="likelihood"),
    ),
    "ess": DCEM(n_samples=20, n_elite=5, n_iters=4, ess=8),
    "cma": CMAES(n_samples=20, n_iters=4),
    "separable": CMAES(n_samples=20, n_iters=4, tau=0, distribution=Gaussian()),
    "ipop": IPOP(n_samples=20, n_iters=4, restarts=1),
    "refined": DCEM(n_samples=20, n_elite=5, n_iters=4, refine=Refine(2)),
    "refined cma": CMAES(n_samples=20, n_iters=4, refine=Refine()),
    "mppi": MPPI(n_samples=20, n_iters=4),
    "descent": GradientDescent(n_iters=4, n_samples=3),
}


def f(x: Tensor) -> Tensor:
    return sphere(x, TARGET) + 0.2 * torch.sin(4 * x).sum(-1)


def noise_for(solver, x0: Tensor) -> list[Tensor | None]:
    return [solver.draw(x0, t, None) for t in range(solver.n_iters)]

"""The code released with the paper, and the LML that it imports, from the folders of $DCEM_RELEASED.

Neither is on a package index: clone facebookresearch/dcem and locuslab/lml, and name both folders, with
a colon between them.
"""

import os
import sys

sys.path[:0] = os.environ["DCEM_RELEASED"].split(os.pathsep)

import torch  # noqa: E402
from dcem.dcem import dcem as released  # noqa: E402
from lml import LML  # noqa: E402

import problems  # noqa: E402
from measure import Job, serve  # noqa: E402


def lml(problem: problems.TopK) -> Job:
    project = LML(N=problem.k)
    return Job(lambda: project(problem.x), problem.parameters)


def dcem(problem: problems.Quadratic, temp: float = 1.0) -> Job:
    """`temp` multiplies the values: it is 1/τ. Its early stopping is off: everyone runs all iterations."""
    batch, n = problem.x0.shape

    def forward() -> torch.Tensor:
        return released(
            problem.cost,
            n,
            n_batch=batch,
            n_sample=problem.n_samples,
            n_elite=problem.n_elite,
            n_iter=problem.n_iters,
            temp=temp,
            init_mu=problem.x0,
            init_sigma=torch.full_like(problem.x0, problem.sigma),
            iter_eps=0.0,
        )

    return Job(forward, problem.parameters)


if __name__ == "__main__":
    serve({"lml": lml, "dcem": dcem}, packages=())

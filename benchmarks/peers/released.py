"""The code released with the paper, and the LML that it imports, from the folders of $DCEM_RELEASED.

Neither is on a package index: clone facebookresearch/dcem and locuslab/lml, and name both folders, with
a colon between them.
"""

import os
import sys
from unittest.mock import MagicMock, patch

FOLDERS = os.environ["DCEM_RELEASED"].split(os.pathsep)
sys.path[:0] = [*FOLDERS, *(os.path.join(folder, "exps") for folder in FOLDERS)]

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


def embedding(problem: problems.Embedding) -> Job:
    """Decoder, cartpole and search of the released experiment, without its printing."""
    # The experiment imports these at its top, and uses none of them in an update.
    unused = ("gym", "higher", "hydra", "numdifftools", "pandas", "matplotlib", "matplotlib.pyplot")
    with patch.dict(sys.modules, {name: MagicMock() for name in unused}):
        import cartpole_emb
    budget = {"n_sample": problem.n_samples, "n_elite": problem.n_elite, "n_iter": problem.n_iters}
    cartpole = cartpole_emb.CartpoleDx()
    method = cartpole_emb.DCEM(
        latent_size=problem.latent,
        ctrl_opts={
            **budget, "init_sigma": problem.sigma, "temp": 1.0, "lb": -1.0, "ub": 1.0, "normalize": True,
            "iter_eps": 0.0,
        },
        n_hidden=256,
        lr=5e-4,
        n_ctrl=cartpole.n_ctrl,
        dx=cartpole,
        plan_horizon=problem.horizon,
        device="cpu",
        solve_full=None,
    )  # fmt: skip
    parameters = tuple(method.decode.parameters())
    return Job(lambda: method.solve(problem.state, iter_cb=lambda *_: None)[1], parameters)


if __name__ == "__main__":
    serve({"lml": lml, "dcem": dcem, "embedding": embedding}, packages=())

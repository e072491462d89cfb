"""Many gradients of one solve at once: `is_grads_batched`, as in `jacobian(vectorize=True)`."""

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

import dcem

LIKELIHOOD = dcem.Gaussian(estimator="likelihood")
SOLVERS = {
    "default": dcem.DCEM(n_iters=3),
    "paper": dcem.DCEM(n_iters=3, tau=1.0, normalize=True, distribution=LIKELIHOOD),
    "bounds": dcem.DCEM(n_iters=3, distribution=dcem.Gaussian(bounds=(-0.5, 0.5))),
    "full": dcem.DCEM(n_iters=3, distribution=dcem.FullGaussian()),
    "ess": dcem.DCEM(n_iters=3, ess=20.0),
    "MPPI": dcem.MPPI(n_iters=3),
    "CMAES": dcem.CMAES(n_iters=3),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_the_jacobian_of_a_solution(name: str, double: None) -> None:
    solver, theta = SOLVERS[name], torch.tensor([0.3, -0.2, 0.1])

    def solution(theta: Tensor) -> Tensor:
        f = lambda x: (x - theta).square().sum(-1) + x.sin().prod(-1)  # noqa: E731
        return dcem.minimize(f, solver, torch.zeros(3), generator=torch.Generator().manual_seed(0)).x

    row_by_row, at_once = (jacobian(solution, theta, vectorize=batched) for batched in (False, True))
    assert row_by_row.norm() > 0.1
    torch.testing.assert_close(at_once, row_by_row)


@pytest.mark.parametrize("k", [3, torch.tensor(3.0)], ids=["number", "tensor"])
def test_the_jacobian_of_the_soft_topk(k: float | Tensor, double: None) -> None:
    x = torch.linspace(-1, 1, 10)
    row_by_row, at_once = (
        jacobian(lambda x: dcem.lml(x, k, tau=0.3), x, vectorize=batched) for batched in (False, True)
    )
    torch.testing.assert_close(at_once, row_by_row)

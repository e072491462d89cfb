"""Whole solves compile, forward and backward, for one batch size after another."""

import pytest
import torch
from torch import Tensor

import dcem
from versions import COMPILES

pytestmark = pytest.mark.skipif(not COMPILES, reason="older versions of torch cannot compile all of them")

SOLVERS = {
    "soft": dcem.DCEM(n_iters=2),
    "hard": dcem.DCEM(n_iters=2, tau=0),
    "full": dcem.DCEM(n_iters=2, distribution=dcem.FullGaussian()),
    "mixed": dcem.DCEM(
        n_iters=2, distribution=dcem.Product([(dcem.Categorical(2), 2), (dcem.Gaussian(), 1)])
    ),
    "mppi": dcem.MPPI(n_iters=2),
    "cma": dcem.CMAES(n_iters=2),
    "ipop": dcem.IPOP(n_iters=2, tau=0),
    "refined": dcem.DCEM(n_iters=2, refine=dcem.Refine()),
    "descent": dcem.GradientDescent(n_iters=2),
}


@pytest.mark.filterwarnings("ignore")  # of the compiler's own
@pytest.mark.parametrize(
    "dynamic",
    [pytest.param(None, id="static first"), pytest.param(True, id="dynamic", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in ("cma", "ipop") else name for name in SOLVERS],
)
def test_batch_sizes_may_change(name, dynamic):
    torch._dynamo.reset()
    theta = torch.tensor([0.4, -0.3, 0.1], requires_grad=True)

    def solve(x0: Tensor) -> Tensor:
        return dcem.minimize(lambda x: (x - theta).square().sum(-1), SOLVERS[name], x0, cost=False).x

    compiled = torch.compile(solve, backend="aot_eager", dynamic=dynamic, fullgraph=True)
    for batch in (2, 5, 3):
        x = compiled(torch.zeros(batch, 3))
        assert x.shape == (batch, 3) and x.isfinite().all()
        if x.requires_grad:
            assert torch.autograd.grad(x.sum(), theta)[0].isfinite().all()

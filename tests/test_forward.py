"""The forward pass is bit for bit the same however it is differentiated, whatever the values are."""

import pytest
import torch
from torch import Tensor

import dcem
from dcem.backward import Checkpoint, Detach, Implicit, Prune, Truncate, Unroll

MODES = [Unroll(), Checkpoint(), Truncate(2), Prune(0.1), Prune(0.5), Implicit(), Detach()]


def answer(f, mode, seed: int, **settings) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    solver = dcem.DCEM(n_iters=6, **settings)
    return dcem.minimize(f, solver, torch.zeros(3), backward=mode, generator=generator, cost=False).x


@pytest.mark.parametrize("mode", MODES[1:], ids=str)
@pytest.mark.parametrize("returns", ["mean", "best"])
@pytest.mark.parametrize("tau", [1.0, 0.1, 1e-3])
def test_with_regions_of_nan(mode, returns, tau):
    theta = torch.tensor([0.4, -0.3, 0.1], requires_grad=True)

    def f(x: Tensor) -> Tensor:
        values = (x - theta).square().sum(-1)
        return torch.where(x[..., 0] < -0.5, torch.nan, values)

    for seed in range(10):
        plain = answer(f, Unroll(), seed, tau=tau, returns=returns)
        assert torch.equal(answer(f, mode, seed, tau=tau, returns=returns), plain)


@pytest.mark.parametrize("mode", MODES[1:], ids=str)
@pytest.mark.parametrize("returns", ["mean", "best"])
def test_with_penalties_that_dwarf_all_else(mode, returns):
    theta = torch.tensor([0.4, -0.3, 0.1], requires_grad=True)

    def f(x: Tensor) -> Tensor:
        return (x - theta).square().sum(-1) + torch.where(x[..., 1] > 0.3, 1e8, 0.0)

    for seed in range(10):
        plain = answer(f, Unroll(), seed, returns=returns)
        assert torch.equal(answer(f, mode, seed, returns=returns), plain)


@pytest.mark.parametrize("n_samples", [37, 100])
def test_with_a_network_whose_rounding_depends_on_the_batch(n_samples):
    net = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    for seed in range(10):
        found = [
            answer(lambda x: net(x).squeeze(-1), mode, seed, n_samples=n_samples, tau=0.05) for mode in MODES
        ]
        assert all(torch.equal(x, found[0]) for x in found)


@pytest.mark.parametrize("work", ["mul_", "clamp_", "set item"])
def test_an_objective_that_works_in_place_is_named(work):
    def f(x: Tensor) -> Tensor:
        if work == "mul_":
            x.mul_(2)
        elif work == "clamp_":
            x.clamp_(-1, 1)
        else:
            x[..., 0] = 0
        return x.square().sum(-1)

    with pytest.raises(ValueError, match="f must not change its input in place"):
        dcem.minimize(f, dcem.DCEM(), torch.zeros(2))
    assert dcem.minimize(lambda x: f(x.clone()), dcem.DCEM(), torch.zeros(2)).cost is not None


def test_inference_mode_has_no_versions_to_look_at():
    with torch.inference_mode():
        assert dcem.minimize(lambda x: x.square().sum(-1), dcem.DCEM(), torch.zeros(2)).cost < 0.1


def test_shapes_can_be_found_on_the_meta_device():
    x0 = torch.zeros(4, 3, device="meta")
    for solver in (dcem.DCEM(), dcem.MPPI(), dcem.DCEM(tau=0, returns="best")):
        sol = dcem.minimize(lambda x: x.square().sum(-1), solver, x0)
        assert sol.x.shape == (4, 3) and sol.x.device.type == "meta" and sol.cost.shape == (4,)


def test_the_package_says_which_it_is():
    assert dcem.__version__[0].isdigit()

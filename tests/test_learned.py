"""Learned settings belong to the layer, stay in range while they train, and say so where they do not."""

import copy

import pytest
import torch
from torch import nn

import dcem
from dcem.systems import Pendulum


def energy(x, y):
    return (y - x).square().sum(-1)


SETTINGS = {
    "tau": lambda p: dcem.DCEM(tau=p),
    "sigma": lambda p: dcem.DCEM(distribution=dcem.Gaussian(sigma=p)),
    "smoothing": lambda p: dcem.DCEM(smoothing=p),
    "temperature": lambda p: dcem.MPPI(temperature=p),
    "learning_rate": lambda p: dcem.GradientDescent(learning_rate=p),
}


@pytest.mark.parametrize("kind", [nn.Parameter, dcem.Positive], ids=["parameter", "positive"])
@pytest.mark.parametrize("name", SETTINGS)
def test_they_are_parameters_of_the_layer_and_get_gradients(name, kind):
    setting = kind(torch.tensor(0.3))
    layer = dcem.Argmin(energy, SETTINGS[name](setting), n=2)
    (found,) = layer.parameters()
    assert found is (setting if kind is nn.Parameter else setting.raw)
    assert list(layer.state_dict()) == [f"solver_{name}" + (".raw" if kind is dcem.Positive else "")]
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    for _ in range(3):  # a graph for every pass
        optimizer.zero_grad()
        layer(torch.randn(4, 2)).square().sum().backward()
        assert found.grad is not None and found.grad.isfinite().all()
        optimizer.step()


def test_those_of_a_controller_too():
    sigma, tau = dcem.Positive(torch.tensor([0.5])), nn.Parameter(torch.tensor(0.7))
    solver = dcem.DCEM(tau=tau, n_iters=3, distribution=dcem.Gaussian(sigma=sigma))
    mpc = dcem.MPC(Pendulum(), horizon=5, low=-2.0, high=2.0, solver=solver)
    assert {"solver_tau", "solver_sigma.raw"} <= set(mpc.state_dict())
    for _ in range(2):
        mpc(torch.tensor([[1.0, 0.0, 0.1]])).cost.sum().backward()
    assert tau.grad is not None and sigma.raw.grad is not None


def test_a_copy_and_a_loaded_state_use_their_own():
    layer = dcem.Argmin(energy, dcem.DCEM(tau=nn.Parameter(torch.tensor(0.3))), n=2)
    other = copy.deepcopy(layer)
    other.load_state_dict({"solver_tau": torch.tensor(0.9)})
    assert other.solver.tau.item() == pytest.approx(0.9) and layer.solver.tau.item() == pytest.approx(0.3)
    assert layer.double().solver.tau.dtype == torch.float64


def test_positive_stays_positive():
    tau = dcem.Positive(0.5)
    optimizer = torch.optim.SGD(tau.parameters(), lr=10.0)
    for _ in range(20):
        optimizer.zero_grad()
        tau().backward()  # pushes it down
        optimizer.step()
    assert 0 < tau().item() < 0.01
    with pytest.raises(ValueError, match="Positive: value must be positive"):
        dcem.Positive(-1.0)


def test_a_parameter_that_left_its_range_is_named():
    tau = nn.Parameter(torch.tensor(0.3))
    layer = dcem.Argmin(energy, dcem.DCEM(tau=tau), n=2)
    with torch.no_grad():
        tau.fill_(-0.1)
    with pytest.raises(ValueError, match=r"DCEM: tau must be > 0 .*, got -0.1"):
        layer(torch.zeros(1, 2))


def test_a_tensor_made_by_an_operation_is_refused_by_layers_and_taken_by_minimize():
    raw = torch.tensor(0.3, requires_grad=True)
    with pytest.raises(ValueError, match="tau must be a Parameter or"):
        dcem.Argmin(energy, dcem.DCEM(tau=raw.exp()), n=2)
    for _ in range(2):
        solver = dcem.DCEM(tau=raw.exp())
        dcem.minimize(lambda x: (x - 1).square().sum(-1), solver, torch.zeros(2)).x.sum().backward()
    assert raw.grad is not None


def test_solvers_are_equal_by_value():
    def make(sigma: float) -> dcem.DCEM:
        bounds = (torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0]))
        return dcem.DCEM(distribution=dcem.Gaussian(sigma=torch.tensor([sigma, 1.0]), bounds=bounds))

    assert make(0.5) == make(0.5) and make(0.5) != make(0.6)
    assert dcem.DCEM() == dcem.DCEM() and dcem.DCEM() != dcem.MPPI() and dcem.DCEM() != 3
    assert len({dcem.DCEM(), dcem.MPPI()}) == 2  # and can be kept in sets

"""The action box always holds, whoever searches; what contradicts it is an error."""

import math

import numpy as np
import pytest
import torch

import dcem
from dcem.systems import Cartpole, Pendulum


class Away:
    """Pays for actions that are large."""

    action_dim = 2

    def step(self, state, action):
        return state, -action.abs().sum(-1)


@pytest.mark.parametrize(
    "solver",
    [
        dcem.DCEM(),
        dcem.DCEM(distribution=dcem.FullGaussian()),
        dcem.DCEM(distribution=dcem.Gaussian(boundary="squash")),
        dcem.DCEM(distribution=dcem.Gaussian(boundary="truncate")),
        dcem.MPPI(),
        dcem.GradientDescent(n_iters=30, n_samples=4, learning_rate=1.0),
    ],
    ids=lambda s: f"{type(s).__name__}",
)
def test_whoever_searches(solver):
    mpc = dcem.MPC(Away(), horizon=4, low=-0.1, high=torch.tensor([0.1, 0.2]), solver=solver)
    plan = mpc(torch.zeros(3, 1))
    assert (plan.actions >= -0.1).all() and (plan.actions <= torch.tensor([0.1, 0.2])).all()
    assert plan.actions.abs().max() > 0.09


def test_a_solver_without_bounds_of_its_own(monkeypatch):
    class Unbounded(dcem.GradientDescent):
        def within(self, box, steps=1):
            return self

    mpc = dcem.MPC(Away(), horizon=4, low=-0.1, high=0.1, solver=Unbounded(n_samples=3, learning_rate=1.0))
    assert mpc(torch.zeros(3, 1)).actions.abs().max() <= 0.1


def test_bounds_of_the_solver_must_be_the_same():
    same = dcem.DCEM(distribution=dcem.Gaussian(bounds=(-2.0, 2.0)))
    dcem.MPC(Pendulum(), horizon=3, low=-2.0, high=2.0, solver=same)
    for solver in (
        dcem.DCEM(distribution=dcem.Gaussian(bounds=(-1.0, 1.0))),
        dcem.GradientDescent(bounds=(-1.0, 1.0)),
    ):
        with pytest.raises(ValueError, match="bounds must be left out or agree"):
            dcem.MPC(Pendulum(), horizon=3, low=-2.0, high=2.0, solver=solver)


def test_a_decoder_brings_its_bounds_or_must_keep_them():
    decoder = dcem.Decoder(2, horizon=3, action_dim=1, low=-100.0, high=100.0)
    mpc = dcem.MPC(Cartpole(), horizon=3, decoder=decoder)
    assert mpc.low.item() == -100 and mpc.high.item() == 100
    dcem.MPC(Cartpole(), horizon=3, low=-200.0, high=200.0, decoder=decoder)
    with pytest.raises(ValueError, match="low must be left out or hold the decoder's actions"):
        dcem.MPC(Cartpole(), horizon=3, low=-1.0, high=100.0, decoder=decoder)


def test_the_first_spread_is_in_the_units_of_the_box():
    """Cartpole's forces reach to 100: a spread of one would hardly search at all."""
    states = Cartpole.initial_states(20, generator=torch.Generator().manual_seed(0))

    def cost(**settings) -> float:
        mpc = dcem.MPC(Cartpole(), horizon=20, low=-100.0, high=100.0, **settings)
        return mpc(states, generator=torch.Generator().manual_seed(0)).cost.mean().item()

    def paper(sigma: float | None) -> dcem.DCEM:  # whose spread cannot grow to what is needed
        return dcem.DCEM(normalize=True, distribution=dcem.Gaussian(sigma, estimator="likelihood"))

    assert cost(solver=paper(None)) < cost(solver=paper(1.0)) - 5
    assert cost() < cost(solver=dcem.DCEM(distribution=dcem.Gaussian(sigma=1.0))) - 2


def test_bounds_may_be_those_of_a_gymnasium_space():
    low, high = np.array([-1, -2], dtype=np.float32), np.array([1, np.inf], dtype=np.float32)
    mpc = dcem.MPC(Away(), horizon=2, low=low, high=high)
    assert mpc.low.tolist() == [-1, -2] and mpc.high.tolist() == [1, math.inf]
    assert mpc(torch.zeros(1, 1)).actions.isfinite().all()


def test_the_box_moves_with_the_controller():
    mpc = dcem.MPC(Pendulum(), horizon=3, low=-2.0, high=2.0).double()
    assert mpc._searching.box.low.dtype == torch.float64
    assert mpc(torch.tensor([1.0, 0.0, 0.1], dtype=torch.float64)).action.dtype == torch.float64


@pytest.mark.parametrize(("low", "high"), [(1.0, -1.0), (torch.zeros(3), 1.0)])
def test_bounds_that_make_no_sense_are_named(low, high):
    with pytest.raises(ValueError, match="MPC: "):
        dcem.MPC(Away(), horizon=2, low=low, high=high)

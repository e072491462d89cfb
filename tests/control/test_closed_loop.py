"""Controllers at work."""

import pytest
import torch

from dcem import DCEM, MPC, Gaussian
from dcem.control import closed_loop
from dcem.systems.cartpole import Cartpole
from dcem.systems.pendulum import Pendulum


def cem(model, horizon: int, high: float, sigma: float, **settings) -> MPC:
    solver = DCEM(tau=0, distribution=Gaussian(sigma=sigma), **settings)
    return MPC(model, horizon, -high, high, solver=solver)


def test_what_happened_is_what_the_system_does():
    mpc = cem(Pendulum(), 5, 2.0, 2.0, n_samples=20, n_elite=4, n_iters=2)
    heavy = Pendulum(mass=2.0)
    start = Pendulum.initial_states(3, generator=torch.Generator().manual_seed(0))
    path = closed_loop(mpc, start, 4, system=heavy, generator=torch.Generator().manual_seed(1))
    assert path.states.shape == (5, 3, 3) and path.actions.shape == (4, 3, 1) and path.costs.shape == (4, 3)
    assert torch.equal(path.states[0], start)
    for t in range(4):
        following, cost = heavy.step(path.states[t], path.actions[t])
        assert torch.equal(path.states[t + 1], following) and torch.equal(path.costs[t], cost)
    again = closed_loop(mpc, start, 4, system=heavy, generator=torch.Generator().manual_seed(1))
    assert torch.equal(again.states, path.states)


def test_the_pendulum_swings_up():
    start = Pendulum.initial_states(10, generator=torch.Generator().manual_seed(0))
    mpc = cem(Pendulum(), 20, 2.0, 2.0, n_samples=100, n_elite=10, n_iters=3)
    path = closed_loop(mpc, start, 120, generator=torch.Generator().manual_seed(1))
    assert (path.states[-10:, :, 0] > 0.95).all()


@pytest.mark.slow
def test_the_cartpole_swings_up_from_95_of_100_states():
    """Upright to within 18 degrees, all through the third second, and near the centre."""
    start = Cartpole.initial_states(100, generator=torch.Generator().manual_seed(0))
    mpc = cem(Cartpole(), 20, 100.0, 100.0, n_samples=1000, n_elite=10, n_iters=10)
    path = closed_loop(mpc, start, 60, generator=torch.Generator().manual_seed(1))
    up = (path.states[-20:, :, 2] > 0.95).all(0) & (path.states[-20:, :, 0].abs() < 1).all(0)
    assert up.sum() >= 95, f"{int(up.sum())} of 100"

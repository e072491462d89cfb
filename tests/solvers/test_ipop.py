"""CMA-ES with restarts: each row on its own, as the solver with so many samples would go on."""

import pytest
import torch
from torch import Tensor

from dcem import CMAES, IPOP, FullGaussian, minimize
from problems import rastrigin, sphere

pytestmark = pytest.mark.usefixtures("double")
FLAT = 50.0  # outside, the objective below has one value
TARGET = torch.tensor([0.4, -0.3, 0.1], dtype=torch.float64)


def flat_far_away(x: Tensor) -> Tensor:
    far = x.abs().amax(-1) > FLAT
    return torch.where(far, 7.0, sphere(x, TARGET) + 0.3 * torch.sin(5 * x).sum(-1))


def steps(solver: IPOP, state, noise: Tensor, f=flat_far_away):
    for t, epsilon in enumerate(noise):
        state, _ = solver.step(lambda x, influence: f(x), state, epsilon, t)
    return state


def test_without_a_restart_it_is_cmaes_with_the_best_sample_as_answer():
    noise = torch.randn(8, 4, 6, 3)
    settings = {"n_samples": 6, "n_iters": 8, "distribution": FullGaussian(sigma=0.7)}
    first = minimize(flat_far_away, IPOP(**settings), torch.zeros(4, 3), noise=noise)
    other = minimize(flat_far_away, CMAES(**settings, returns="best"), torch.zeros(4, 3), noise=noise)
    assert torch.allclose(first.x, other.x)
    for a, b in zip(first.state.phi, other.state.phi, strict=True):
        assert torch.allclose(a, b)


def test_a_row_that_is_stuck_starts_again_with_twice_the_samples_and_the_others_go_on():
    solver = IPOP(n_samples=6, n_iters=3, restarts=2)
    x0 = torch.tensor([[0.0, 0.0, 0.0], [100.0, 100.0, 100.0]])
    state = solver.init(x0)
    seen = []
    for t, epsilon in enumerate(torch.randn(12, 2, 6, 3)):
        state, _ = solver.step(lambda x, influence: flat_far_away(x), state, epsilon, t)
        seen.append(state.own.batches.tolist())
    # It is stuck after 1 batch, then after 2, and from then on gathers 4 for every update.
    assert seen == [[1, 2], [1, 2], *[[1, 4]] * 10]
    assert torch.equal(state.own.gathered, torch.tensor([0, 1]))
    assert not torch.equal(state.phi.mean[0], x0[0])


@pytest.mark.parametrize("tau", [0, 0.1])
def test_after_a_restart_it_is_cmaes_with_so_many_samples(tau):
    solver = IPOP(n_samples=6, n_iters=8, restarts=2, tau=tau, distribution=FullGaussian(sigma=0.7))
    noise = torch.randn(8, 2, 6, 3)
    state = solver.init(torch.zeros(2, 3))
    doubled = state._replace(own=state.own._replace(batches=2 * state.own.batches))
    found = steps(solver, doubled, noise).phi
    pairs = noise.unflatten(0, (4, 2)).transpose(1, 2).flatten(2, 3)
    once = CMAES(n_samples=12, n_iters=4, tau=tau, distribution=FullGaussian(sigma=0.7))
    expected = minimize(flat_far_away, once, torch.zeros(2, 3), noise=pairs).state.phi
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b)


@pytest.mark.parametrize("tau", [0, 0.1])
def test_a_batch_is_a_loop_also_where_only_some_rows_start_again(tau):
    solver = IPOP(n_samples=6, n_iters=9, restarts=1, tau=tau)
    x0 = torch.tensor([[0.0, 0.0, 0.0], [100.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    noise = torch.randn(9, 3, 6, 3)
    together = minimize(flat_far_away, solver, x0, noise=noise).x
    alone = [minimize(flat_far_away, solver, x0[i], noise=noise[:, i]).x for i in range(3)]
    assert torch.allclose(together, torch.stack(alone))


def test_derivatives_where_a_row_has_started_again():
    noise = 1.2 * torch.randn(6, 2, 5, 2)

    def solve(theta: Tensor, x0: Tensor, tau: Tensor) -> Tensor:
        solver = IPOP(n_samples=5, n_iters=6, restarts=1, tau=tau)
        state = solver.init(x0)
        state = state._replace(own=state.own._replace(batches=torch.tensor([1, 2])))
        return solver.result(steps(solver, state, noise, lambda x: torch.cosh(x - theta).sum(-1)))

    leaves = torch.randn(2), 0.5 * torch.randn(2, 2), torch.tensor(1.0)
    inputs = [x.requires_grad_() for x in leaves]
    assert torch.autograd.gradcheck(solve, inputs)
    assert torch.autograd.gradgradcheck(solve, inputs)


def test_restarts_find_a_minimum_that_one_run_misses(generator):
    theta = torch.full((4,), 0.3)
    start = torch.full((8, 4), 3.0)
    one, more = (
        minimize(lambda x: rastrigin(x, theta), solver, start, generator=generator).cost
        for solver in (CMAES(n_iters=600, tau=0), IPOP(n_iters=600, tau=0))
    )
    assert (more < 1e-6).sum() >= (one < 1e-6).sum() + 2
    assert more.mean() < one.mean() / 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"restarts": 0}, "restarts must be a positive integer, got 0"),
        ({"stop_below": 0.1}, "stop_below must be left out, as rows start again, got 0.1"),
    ],
)
def test_bad_settings_say_what_is_wrong(settings, words):
    with pytest.raises(ValueError, match=f"^IPOP: {words}"):
        IPOP(**settings)

"""Points that are tried among the samples of every iteration."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from dcem import DCEM, MPPI, Argmin, FullGaussian, Gaussian, GradientDescent, minimize
from dcem.backward import Checkpoint, Detach, Implicit, Prune, Truncate, Unroll
from problems import rastrigin, sphere
from solver_cases import SOLVERS, TARGET, f, noise_for

pytestmark = pytest.mark.usefixtures("double")
SAMPLING = {name: solver for name, solver in SOLVERS.items() if name != "descent"}
FAR = torch.tensor([1.7, -1.9])


@pytest.mark.parametrize("solver", SAMPLING.values(), ids=SAMPLING)
def test_every_iteration_evaluates_them_and_all_samples(solver):
    proposals = torch.stack([FAR, TARGET])
    x0 = torch.zeros(2)
    noise = noise_for(solver, x0)
    sol = minimize(f, solver, x0, proposals=proposals, noise=noise, trace=True)
    plain = minimize(f, solver, x0, noise=noise, trace=True)
    count = solver.samples(2) + 2
    for record in sol.trace:
        assert record.samples.shape == (count, 2)
        torch.testing.assert_close(record.samples[-2:], proposals)
        assert record.values.shape == record.weights.shape == (count,)
    torch.testing.assert_close(sol.trace[0].samples[:-2], plain.trace[0].samples)


@pytest.mark.parametrize("distribution", [Gaussian(1.0), FullGaussian(1.0)], ids=["diagonal", "full"])
def test_the_refit_is_to_samples_and_proposals_together(distribution):
    solver = DCEM(n_samples=6, n_elite=2, n_iters=1, tau=0.7, distribution=distribution)
    proposals = torch.tensor([[0.5, 0.1], [-2.0, 1.0], [0.3, -0.3]])
    sol = minimize(f, solver, torch.zeros(2), proposals=proposals, trace=True)
    (record,) = sol.trace
    share = record.weights / record.weights.sum()
    torch.testing.assert_close(sol.x, share @ record.samples)
    assert record.weights[-3:].max() > 0


def test_a_good_one_is_found_where_samples_never_come():
    """A narrow well far from a bowl that leads elsewhere."""
    target = torch.tensor([6.0, -6.0])

    def basin(x):
        return 0.001 * x.square().sum(-1) - torch.exp(-4 * sphere(x, target))

    solver = DCEM(n_samples=50, n_elite=5, n_iters=15, tau=0.1, returns="best")
    assert minimize(basin, solver, torch.zeros(2)).cost > -0.001
    found = minimize(basin, solver, torch.zeros(2), proposals=(target + 0.2).unsqueeze(0))
    assert found.cost < -0.6


def test_none_of_them_is_a_solve_without():
    solver, x0 = SOLVERS["soft"], torch.zeros(3, 2)
    noise = noise_for(solver, x0)
    without = minimize(f, solver, x0, noise=noise)
    assert torch.equal(minimize(f, solver, x0, noise=noise, proposals=torch.zeros(3, 0, 2)).x, without.x)


@pytest.mark.parametrize("boundary", ["clamp", "truncate", "squash"])
def test_bounds_hold_for_them(boundary):
    solver = DCEM(n_iters=3, distribution=Gaussian(0.3, (-1.0, 1.0), boundary), returns="best")
    outside = torch.tensor([[5.0, 0.2], [0.1, -3.0]])
    sol = minimize(lambda x: -x.abs().sum(-1), solver, torch.zeros(2), proposals=outside, trace=True)
    for record in sol.trace:
        assert record.samples.abs().max() <= 1
        torch.testing.assert_close(record.samples[-2:], outside.clamp(-1, 1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("solver", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("batch", [(3,), (2, 2)])
def test_a_batch_is_solved_as_one_row_at_a_time(solver, batch):
    x0, proposals = 0.3 * torch.randn(*batch, 2), torch.randn(*batch, 4, 2)
    noise = noise_for(solver, x0)
    together = minimize(f, solver, x0, proposals=proposals, noise=noise)
    for row in map(tuple, torch.cartesian_prod(*map(torch.arange, batch)).reshape(-1, len(batch)).tolist()):
        alone = minimize(f, solver, x0[row], proposals=proposals[row], noise=[e[row] for e in noise])
        torch.testing.assert_close(together.x[row], alone.x)
        torch.testing.assert_close(together.cost[row], alone.cost)


FAMILIES = {
    "diagonal": Gaussian(0.7),
    "truncate": Gaussian(0.7, (-1.5, 1.5), "truncate"),
    "squash": Gaussian(0.7, (-1.5, 1.5), "squash"),
    "full": FullGaussian(0.7),
}
CASES = {
    name: DCEM(n_samples=6, n_elite=2, n_iters=3, tau=0.8, distribution=d) for name, d in FAMILIES.items()
}
CASES["mppi"] = MPPI(n_samples=6, n_iters=3, adapt_sigma=True)
CASES["elites"] = DCEM(n_samples=6, n_elite=2, n_iters=3, tau=0.8, keep_elites=2)


@pytest.mark.parametrize(
    "mode", [Unroll(), Checkpoint(), Truncate(3), Prune(1.0)], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize("solver", CASES.values(), ids=CASES)
def test_gradients_by_finite_differences(solver, mode):
    noise = torch.randn(3, 2, 6, 2)

    def solve(theta, proposals):
        sol = minimize(
            lambda x: torch.cosh(x - theta).sum(-1),
            solver,
            torch.zeros(2, 2),
            proposals=proposals,
            noise=noise,
            backward=mode,
        )
        return sol.x, sol.cost

    inputs = torch.randn(2).requires_grad_(), (0.5 * torch.randn(2, 3, 2)).requires_grad_()
    assert gradcheck(solve, inputs)


def test_what_each_mode_leaves_out():
    """Truncate the early iterations, Detach and Implicit the way to the answer."""
    solver = DCEM(n_samples=20, n_elite=5, n_iters=6, tau=0.8)
    noise = torch.randn(6, 20, 2)

    def slope(mode):
        proposals = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
        theta = torch.zeros(2, requires_grad=True)
        x = minimize(
            lambda x: sphere(x, theta), solver, torch.ones(2), proposals=proposals, noise=noise, backward=mode
        ).x
        if not x.requires_grad:
            return None
        return torch.autograd.grad(x.sum(), proposals, allow_unused=True)[0]

    whole = slope(Unroll())
    torch.testing.assert_close(slope(Checkpoint()), whole)
    part = slope(Truncate(1))
    assert part.abs().sum() > 0 and not torch.allclose(part, whole)
    assert slope(Prune(0.3)).abs().sum() > 0
    assert slope(Detach()) is None and slope(Implicit()) is None


def test_the_forward_pass_is_the_same_in_all_modes():
    solver, x0, proposals = SOLVERS["soft"], torch.zeros(3, 2), torch.randn(3, 4, 2)
    noise = noise_for(solver, x0)
    theta = TARGET.clone().requires_grad_()
    answers = [
        minimize(lambda x: sphere(x, theta), solver, x0, proposals=proposals, noise=noise, backward=mode).x
        for mode in (Unroll(), Checkpoint(), Truncate(1), Prune(0.5), Implicit(), Detach())
    ]
    assert all(torch.equal(answer, answers[0]) for answer in answers)


def test_kept_elites_are_samples_alone():
    """A proposal that is best would else be a candidate twice."""
    solver = DCEM(n_samples=10, n_elite=3, n_iters=3, keep_elites=4)
    sol = minimize(f, solver, torch.full((2,), 3.0), proposals=TARGET.expand(1, 2), trace=True)
    for record in sol.trace:
        assert (record.samples == TARGET).all(-1).sum() == 1


def test_they_come_in_the_structure_of_x0():
    target = torch.tensor([2.0, -2.0])

    def error(pose):
        return (pose["position"] - target).square().sum(-1) + (pose["angle"] - 0.5).square()

    solver = DCEM(n_samples=20, n_elite=3, n_iters=2, returns="best", distribution=Gaussian(0.1))
    x0 = {"position": torch.zeros(3, 2), "angle": torch.zeros(3)}
    good = {"position": target.expand(3, 1, 2), "angle": torch.full((3, 1), 0.5)}
    sol = minimize(error, solver, x0, proposals=good)
    torch.testing.assert_close(sol.x["position"], target.expand(3, 2))
    matrix = minimize(
        lambda x: x.sub(2).square().sum((-1, -2)),
        solver,
        torch.zeros(3, 2, 2),
        event_dims=2,
        proposals=torch.full((3, 1, 2, 2), 2.0),
    )
    torch.testing.assert_close(matrix.x, torch.full((3, 2, 2), 2.0))


def test_a_state_goes_on_with_those_of_its_own_call():
    solver = SOLVERS["soft"]
    first = minimize(f, solver, torch.zeros(2), proposals=FAR.expand(3, 2))
    on = minimize(f, solver, first.state, trace=True)
    assert on.trace[0].samples.shape == (20, 2)
    again = minimize(f, solver, first.state, proposals=FAR.expand(1, 2), trace=True)
    assert again.trace[0].samples.shape == (21, 2)


def test_a_layer_takes_them():
    layer = Argmin(
        lambda x, y: rastrigin(y, x), DCEM(n_samples=20, n_elite=3, n_iters=3, returns="best"), n=2
    )
    x = torch.tensor([[8.0, 8.0]])
    assert layer.solve(x, proposals=x.unsqueeze(-2)).cost == 0


@pytest.mark.parametrize(
    ("proposals", "got"),
    [
        (torch.zeros(3, 2), r"\(3, 2\)"),
        (torch.zeros(4, 5, 2), r"\(4, 5, 2\)"),
        (torch.zeros(3, 5, 1), r"\(3, 5, 1\)"),
        ([torch.zeros(3, 5, 2)], r"\(3, 5, 2\)"),
        (3, "3"),
    ],
)
def test_another_shape_is_named(proposals, got):
    with pytest.raises(ValueError, match=rf"proposals must be P points .* of shape \(3, P, 2\), got {got}"):
        minimize(f, SOLVERS["soft"], torch.zeros(3, 2), proposals=proposals)


def test_a_solver_that_does_not_sample_says_so():
    with pytest.raises(ValueError, match="proposals need a solver that samples, got GradientDescent"):
        minimize(f, GradientDescent(), torch.zeros(2), proposals=torch.zeros(1, 2))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_proposals_that_are_not_finite_say_so(bad):
    proposals = torch.zeros(3, 2, 2)
    proposals[1, 0, 1] = bad
    with pytest.raises(ValueError, match=r"^minimize: proposals must be finite, got .* in row 1"):
        minimize(lambda x: x.square().sum(-1), DCEM(n_iters=1), torch.zeros(3, 2), proposals=proposals)


def test_infinite_proposals_are_clamped_to_the_bounds():
    solver = DCEM(n_iters=2, distribution=Gaussian(bounds=(-1.0, 1.0)))
    far = torch.full((1, 2), math.inf)
    assert minimize(lambda x: x.square().sum(-1), solver, torch.zeros(2), proposals=far).x.isfinite().all()

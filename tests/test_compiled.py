"""Solves that run compiled on the CPU give the answers and the gradients of those that do not."""

import copy
import pickle

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import dcem
from dcem import _compile
from versions import COMPILES

pytestmark = pytest.mark.skipif(not COMPILES, reason="older versions of torch run solves uncompiled")

SOLVERS = {
    "soft": dcem.DCEM(n_iters=3),
    "cold": dcem.DCEM(n_iters=3, tau=1e-3),
    "hard": dcem.DCEM(n_iters=3, tau=0),
    "learned": dcem.DCEM(n_iters=3, tau=dcem.Positive(0.5), smoothing=torch.tensor(0.2)),
    "schedule": dcem.DCEM(n_iters=3, tau=lambda t: 0.5**t),
    "kept": dcem.DCEM(n_iters=3, keep_elites=3, returns="best"),
    "stopping": dcem.DCEM(n_iters=3, stop_below=0.2),
    "boxed": dcem.DCEM(n_iters=3, distribution=dcem.Gaussian(bounds=(-1.0, 0.35))),
    "full": dcem.DCEM(n_iters=3, distribution=dcem.FullGaussian()),
    "mppi": dcem.MPPI(n_iters=3),
    "descent": dcem.GradientDescent(n_iters=3, n_samples=4),
}
MODES = {
    "truncate": dcem.backward.Truncate(2),
    "checkpoint": dcem.backward.Checkpoint(),
    "prune": dcem.backward.Prune(0.3),
    "implicit": dcem.backward.Implicit(),
    "detach": dcem.backward.Detach(),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Everything but the last step of compiling, which takes the longest and has a test of its own."""
    torch._dynamo.reset()
    monkeypatch.setattr(_compile, "HOW", {"backend": "aot_eager"})


def answers(solve, theta: Tensor, x0: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    x, cost = solve(x0)
    return [x, cost, *torch.autograd.grad((x * torch.arange(1, 3)).sum() + cost.sum(), theta)]


def check_equal(solver, backward, batch=(2,)) -> None:
    theta = torch.tensor([0.4, -0.3], dtype=torch.float64, requires_grad=True)

    def solve(x0: Tensor) -> tuple[Tensor, Tensor]:
        sol = dcem.minimize(lambda x: (x - theta).square().sum(-1), solver, x0, backward=backward)
        return sol.x, sol.cost

    x0 = torch.zeros(*batch, 2, dtype=torch.float64)
    torch.testing.assert_close(answers(dcem.capture(solve), theta, x0), answers(solve, theta, x0))


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_has_the_same_answer_and_gradient(name):
    check_equal(SOLVERS[name], dcem.backward.Unroll())


@pytest.mark.parametrize("name", MODES)
def test_every_way_to_differentiate_has_the_same_gradient(name):
    check_equal(SOLVERS["soft"], MODES[name])


@pytest.mark.parametrize(
    "name", ["soft", *(pytest.param(name, marks=pytest.mark.slow) for name in ("kept", "stopping"))]
)
def test_it_compiles_to_machine_code(monkeypatch, name):
    monkeypatch.undo()
    check_equal(SOLVERS[name], dcem.backward.Unroll(), batch=())


def quadratic(theta: Tensor):
    return lambda x: (x - theta).square().sum(-1)


@pytest.fixture
def counter(monkeypatch):
    """Counts, in `frame_count`, how often something was compiled."""
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(_compile, "HOW", {"backend": counter})
    return counter


def test_new_closures_are_not_compiled_anew_and_new_batch_sizes_once(counter):
    solve = dcem.capture(lambda theta, x0: dcem.minimize(quadratic(theta), SOLVERS["soft"], x0).x)
    for shift in range(3):
        theta = shift + torch.tensor([0.4, -0.3])
        assert (solve(theta, theta.expand(2, 2)) - theta).abs().max() < 1
    assert counter.frame_count == 1
    for batch in (3, 5, 7):
        assert solve(theta, theta.expand(batch, 2)).shape == (batch, 2)
    assert counter.frame_count == 2


def test_captures_do_not_count_their_versions_together(counter):
    """torch gives up on a function of which there are more than eight."""
    for n in range(1, 11):
        solve = dcem.capture(lambda x0: dcem.minimize(quadratic(x0), dcem.DCEM(n_iters=1), x0).x)
        solve(torch.zeros(n))
    assert counter.frame_count == 10


def test_views_that_no_region_takes_are_compiled_all_the_same(counter):
    theta = torch.tensor([[0.4, -0.3], [0.1, 0.2]])
    row = theta[0]
    f = lambda x: (x - row - theta.sum(0)).square().sum(-1)  # noqa: E731
    solve = dcem.capture(lambda x0: dcem.minimize(f, SOLVERS["soft"], x0).x)
    assert solve(torch.zeros(2)).isfinite().all()
    assert counter.frame_count == 1


def test_gradients_reach_learned_settings():
    tau = dcem.Positive(0.5)
    solve = dcem.capture(
        lambda x0: dcem.minimize(quadratic(torch.ones(2)), dcem.DCEM(n_iters=2, tau=tau), x0).x
    )
    solve(torch.zeros(2)).sum().backward()
    assert tau.raw.grad.abs() > 0


def test_a_generator_gives_the_numbers_it_gives_uncompiled():
    def solve(x0: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return dcem.minimize(quadratic(torch.ones(2)), SOLVERS["soft"], x0, generator=generator).x

    x0 = torch.zeros(2, dtype=torch.float64)
    torch.testing.assert_close(dcem.capture(solve)(x0), solve(x0))


def test_the_trace_has_every_iteration():
    solve = dcem.capture(lambda x0: dcem.minimize(quadratic(torch.ones(2)), SOLVERS["soft"], x0, trace=True))
    trace = solve(torch.zeros(2)).trace
    assert [record.iteration for record in trace] == [0, 1, 2]
    assert trace[0].samples.shape == (100, 2) and trace[0].weights.shape == (100,)


def test_values_that_are_not_finite_get_no_weight():
    def half(x: Tensor) -> Tensor:
        return torch.where(x[..., 0] > 0, (x - 1).square().sum(-1), torch.nan)

    solve = dcem.capture(lambda x0: dcem.minimize(half, SOLVERS["soft"], x0).x)
    assert solve(torch.zeros(2))[0] > 0


@pytest.mark.parametrize("name", ["soft", "hard", "kept", "mppi", "descent"])
def test_a_row_without_a_finite_value_is_an_error(name):
    f = lambda x: x.sum(-1) * torch.tensor([1.0, torch.nan]).unsqueeze(-1)  # noqa: E731
    solve = dcem.capture(lambda x0: dcem.minimize(f, SOLVERS[name], x0).x)
    with pytest.raises(ValueError, match=r"f must have a finite value in every row.* in row 1"):
        solve(torch.zeros(2, 2))


def test_an_objective_that_cannot_be_compiled_runs_as_it_is_after_a_warning():
    def f(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x.square().sum(-1)

    solve = dcem.capture(lambda x0: dcem.minimize(f, dcem.DCEM(n_iters=20, tau=0.1), x0).x)
    with pytest.warns(UserWarning, match="dcem: solves run uncompiled, as torch cannot compile them"):
        assert solve(torch.ones(2)).abs().max() < 0.1
    assert solve(torch.ones(2)).abs().max() < 0.1  # and says so once


def test_nothing_of_the_objective_runs_uncompiled():
    calls = []

    class Objective(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not torch.compiler.is_compiling():
                calls.append(x.shape)
            return x.square().sum(-1)

    f = Objective()
    solve = dcem.capture(lambda x0: dcem.minimize(f, SOLVERS["soft"], x0).cost)
    solve(torch.ones(2))
    assert calls == []


def test_the_function_can_be_run_as_it_is(counter):
    solve = dcem.capture(
        lambda x0: dcem.minimize(quadratic(torch.ones(2)), SOLVERS["soft"], x0).x, compile=False
    )
    solve(torch.zeros(2))
    assert counter.frame_count == 0


def test_plans_are_compiled_by_one_flag_and_are_the_same(counter):
    step = torch.nn.Linear(3, 2)

    def model(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        state = step(torch.cat([state, action], dim=-1))
        return state, state.square().sum(-1)

    solver, settings = dcem.DCEM(n_iters=3, n_samples=20), {"horizon": 3, "action_dim": 1}
    planners = [dcem.MPC(model, solver=solver, compile=compile, **settings) for compile in (False, True)]
    plans = []
    for mpc in planners:
        torch.manual_seed(0)
        plan = mpc(torch.ones(2, 2))
        plans.append([plan.actions, plan.cost, *torch.autograd.grad(plan.actions.sum(), step.weight)])
    assert counter.frame_count == 1
    torch.testing.assert_close(*plans)
    assert copy.deepcopy(planners[1])(torch.ones(2, 2)).actions.shape == (2, 3, 1)
    assert isinstance(pickle.loads(pickle.dumps(planners[1]._program)), _compile.Program)


class Integrator(torch.nn.Module):
    action_dim = 1

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return state + action, (state + action).square().sum(-1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_copies_and_pickles_of_a_compiled_controller_compile_their_own_objective():
    """That of the original, for devices other than the CPU, would plan with the original's weights."""
    mpc = dcem.MPC(Integrator(), horizon=3, compile=True)
    compiled = mpc._program.alone(mpc.total_cost)
    assert mpc._program.alone(mpc.total_cost) is compiled
    for again in (copy.deepcopy(mpc), pickle.loads(pickle.dumps(mpc))):
        assert again._program.alone(again.total_cost) is not compiled


def test_only_functions_can_be_captured():
    with pytest.raises(TypeError, match=r"^capture: f must be callable, got int"):
        dcem.capture(3)

"""Compiled solves of dcem from their first call on: one process for each measurement."""

import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import dcem
import problems
from serving import Reply, answer_requests, versions

Call = Callable[[int], object]  # with so many problems
BUDGET = {"n_samples": 100, "n_iters": 10}


def quadratic(compiled: bool) -> Call:
    """A solve, forward and backward."""
    solver = dcem.DCEM(n_elite=10, **BUDGET)

    def solve(centre: Tensor, x0: Tensor) -> Tensor:
        return dcem.minimize(lambda x: 0.5 * (x - centre.unsqueeze(-2)).square().sum(-1), solver, x0).x

    chosen = dcem.capture(solve) if compiled else solve

    def call(batch: int) -> object:
        problem = problems.Quadratic(batch)
        return torch.autograd.grad(chosen(problem.centre, problem.x0).sum(), problem.centre)

    return call


def mppi(compiled: bool) -> Call:
    """Plans for the double integrator, without gradients."""
    problem, solver = problems.DoubleIntegrator(), dcem.MPPI(temperature=0.1, **BUDGET)

    def solve(x0: Tensor) -> Tensor:
        return dcem.minimize(problem.cost, solver, x0).x

    chosen = dcem.capture(solve) if compiled else solve
    return torch.no_grad()(lambda batch: chosen(problem.x0.repeat(batch, 1)))


class LearnedModel(nn.Module):
    """A network that predicts the change of a state (4) under an action (1)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 4))

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        state = state + 0.1 * self.net(torch.cat([state, action], -1))
        return state, state.square().sum(-1) + 0.01 * action.square().sum(-1)


def mpc(compiled: bool) -> Call:
    """Plans of ten steps through a small network, with gradients to its weights."""
    solver = dcem.DCEM(n_elite=10, **BUDGET)
    plan = dcem.MPC(LearnedModel(), horizon=10, action_dim=1, solver=solver, compile=compiled)
    weights = tuple(plan.parameters())
    return lambda batch: torch.autograd.grad(plan(torch.ones(batch, 4)).cost.sum(), weights)


METHODS = {"quadratic": quadratic, "mppi": mppi, "mpc": mpc}


def seconds(call: Call, batch: int) -> tuple[float, float]:
    """Wall and CPU time of a call, with that of the compilers it started."""
    before = os.times()
    call(batch)
    after = os.times()
    return after.elapsed - before.elapsed, sum(after[:4]) - sum(before[:4])


def start(method: str, batches: Sequence[int]) -> Reply:
    """The first calls with these batch sizes, of a compiled solve that nothing has compiled yet."""
    METHODS[method](False)(batches[0])  # imports, C++ kernels
    call = METHODS[method](True)
    found = {}
    for name, batch in zip(("first call", "second batch size"), batches, strict=True):
        found[f"{name}, s"], found[f"{name}, CPU s"] = seconds(call, batch)
    return found


def answer(do: str, contender: Reply | None, **settings: object) -> Reply:
    if do == "versions":
        return versions(("torch",))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    return start(**settings)  # type: ignore[arg-type]


if __name__ == "__main__":
    answer_requests(answer)

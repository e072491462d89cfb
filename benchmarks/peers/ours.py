"""dcem itself, and the floors it is held against: torch.topk and the bare objective."""

from collections.abc import Callable

import torch
from torch import Tensor

import dcem
import problems
from dcem.systems.cartpole import Cartpole
from measure import Job, serve
from operators import OPERATORS, matched


def lml(problem: problems.TopK) -> Job:
    return Job(lambda: dcem.lml(problem.x, problem.k), problem.parameters)


def selection(problem: problems.Selection, operator: str) -> Job:
    """A soft top-k at the problem's effective sample size: dcem's, or one of another paper."""
    choose = OPERATORS.get(operator, lambda x, k, tau: dcem.lml(x, k, tau=tau))
    temperature = matched(choose, problem.x, problem.k, problem.ess)
    return Job(lambda: choose(problem.x, problem.k, temperature), problem.parameters)


def topk(problem: problems.TopK) -> Job:
    return Job(lambda: torch.topk(problem.x, problem.k).values, problem.parameters)


def cem(
    problem: problems.Search, tau: float = 1.0, mode: tuple[str, ...] = ("Unroll",), compiled: bool = False
) -> Job:
    """`mode` is a class of dcem.backward and its arguments."""
    solver, backward = _solver(problem, tau), getattr(dcem.backward, mode[0])(*mode[1:])
    return _job(
        lambda: dcem.minimize(problem.cost, solver, problem.x0, backward=backward).x, problem, compiled
    )


def mppi(problem: problems.Search, temperature: float, compiled: bool = False) -> Job:
    solver = dcem.MPPI(
        n_samples=problem.n_samples,
        n_iters=problem.n_iters,
        temperature=temperature,
        normalize=False,  # as the peer: the temperature is in the units of the cost
        distribution=dcem.Gaussian(sigma=problem.sigma),
    )
    return _job(lambda: dcem.minimize(problem.cost, solver, problem.x0).x, problem, compiled)


def bare(problem: problems.Search) -> Job:
    """The objective alone, on the samples that a solve would evaluate."""
    with torch.no_grad():
        trace = dcem.minimize(problem.cost, _solver(problem, 1.0), problem.x0, trace=True).trace
    samples = tuple(record.samples.requires_grad_() for record in trace)

    def forward() -> Tensor:
        return torch.stack([problem.cost(X) for X in samples])

    return Job(forward, (*problem.parameters, *samples))


def embedding(problem: problems.Embedding, compiled: bool = False) -> Job:
    mpc = _embedded(problem, compiled)
    return Job(lambda: mpc(problem.state).cost, tuple(mpc.parameters()))


def embedding_bare(problem: problems.Embedding, compiled: bool = False) -> Job:
    """Decoder and rollouts alone, of as many latent points as a solve evaluates, drawn from its box."""
    mpc = _embedded(problem, compiled=False)
    cost = torch.compile(mpc.total_cost) if compiled else mpc.total_cost
    size = problem.n_iters, 1, problem.n_samples, problem.latent
    points = [z.requires_grad_() for z in (2 * torch.rand(size) - 1).unbind()]

    def forward() -> Tensor:
        return torch.stack([cost(z, problem.state) for z in points])

    return Job(forward, (*mpc.parameters(), *points))


def _embedded(problem: problems.Embedding, compiled: bool) -> "dcem.MPC":
    force = Cartpole().max_force
    decoder = dcem.Decoder(problem.latent, problem.horizon, 1, -force, force)
    box = dcem.Gaussian(problem.sigma, bounds=(-1.0, 1.0), estimator="likelihood")
    solver = dcem.DCEM(
        n_samples=problem.n_samples,
        n_elite=problem.n_elite,
        n_iters=problem.n_iters,
        tau=1.0,
        normalize=True,
        distribution=box,
    )
    return dcem.MPC(Cartpole(), problem.horizon, solver=solver, decoder=decoder, compile=compiled)


def _job(solve: Callable[[], Tensor], problem: problems.Search, compiled: bool) -> Job:
    return Job(dcem.capture(solve) if compiled else solve, problem.parameters)


def _solver(problem: problems.Search, tau: float) -> "dcem.DCEM":
    return dcem.DCEM(
        n_samples=problem.n_samples,
        n_elite=problem.n_elite,
        n_iters=problem.n_iters,
        tau=tau,
        normalize=True,
        distribution=dcem.Gaussian(sigma=problem.sigma, estimator="likelihood"),
    )


if __name__ == "__main__":
    methods = {
        "lml": lml,
        "selection": selection,
        "topk": topk,
        "dcem": cem,
        "mppi": mppi,
        "bare": bare,
        "embedding": embedding,
        "embedding_bare": embedding_bare,
    }
    serve(methods, packages=("dcem",))

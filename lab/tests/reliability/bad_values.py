"""NaN and infinite values of the objective, in 0 to 100% of the samples."""

from __future__ import annotations

import math
import random
from pathlib import Path

import torch
from torch import Generator, Tensor

from dcem import DCEM, MPPI, minimize
from reliability.outcome import Outcome

ROWS, N, DIM = 4, 40, 3
BAD = (math.nan, math.inf, -math.inf)
SOLVERS = (
    DCEM(n_samples=N, n_elite=5, n_iters=3),
    DCEM(n_samples=N, n_elite=1, n_iters=3, tau=0.1),
    DCEM(n_samples=N, n_elite=5, n_iters=3, tau=0.0),
    MPPI(n_samples=N, n_iters=3),
)


def measure(count: int, folder: Path) -> Outcome:
    """In each try one row of four has such values in a share of its samples, from none to all of them."""
    chance = random.Random(0)
    failures = []
    for trial in range(count):
        share = trial / max(count - 1, 1)
        solver, row = SOLVERS[trial % len(SOLVERS)], chance.randrange(ROWS)
        problem = spoil_one_row(solver, row, round(share * N), chance)
        if problem:
            failures.append(f"{share:.0%} of row {row}, {solver}: {problem}")
    return Outcome(count, failures, notes="from 0% to 100% of the samples; DCEM at three temperatures, MPPI")


def spoil_one_row(solver: DCEM | MPPI, row: int, n_bad: int, chance: random.Random) -> str:
    generator = Generator().manual_seed(chance.randrange(2**32))
    target = torch.randn(DIM, generator=generator, requires_grad=True)
    noise = torch.randn(solver.n_iters, ROWS, N, DIM, generator=generator)
    bad = torch.zeros(ROWS, N, dtype=torch.bool)
    bad[row, torch.randperm(N, generator=generator)[:n_bad]] = True
    values = torch.tensor([chance.choice(BAD) for _ in range(ROWS * N)]).view(ROWS, N)

    def good(x: Tensor) -> Tensor:
        return (x - target).square().sum(-1)

    def spoilt(x: Tensor) -> Tensor:
        return torch.where(bad, values, good(x)) if x.shape[-2] == N else good(x)

    x0 = torch.zeros(ROWS, DIM)
    expected = minimize(good, solver, x0, noise=noise)
    try:
        found = minimize(spoilt, solver, x0, noise=noise, trace=True)
    except ValueError as error:
        return "" if n_bad == N and f"in row {row}" in str(error) else str(error)
    if n_bad == N:
        return "a row without a finite value went unnoticed"
    others = [r for r in range(ROWS) if r != row]
    if not torch.equal(found.x[others], expected.x[others]):
        return "other rows noticed"
    if any(record.weights[bad].any() for record in found.trace or ()):
        return "a bad sample has weight"
    answers = [found.x]
    if found.x.requires_grad:  # CEM's does not
        answers += torch.autograd.grad(found.x.sum(), target)
    return "" if all(answer.isfinite().all() for answer in answers) else "the answer is not finite"

"""Random combinations of a solve's options, each held to the laws of the library."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from dcem import (
    CMAES,
    DCEM,
    MPPI,
    Categorical,
    FullGaussian,
    Gaussian,
    GradientDescent,
    Product,
    Solver,
    backward,
    minimize,
    noise,
)
from dcem.solvers.elites import lowest_smooth
from reliability.outcome import Outcome

Objective = Callable[[Tensor, Tensor], Tensor]  # points (*B, N, n) and a target (n,) -> (*B, N)
CLOSE = {torch.float32: 2e-3, torch.float64: 1e-7}
STEP = 1e-6  # of the finite differences


@dataclass(frozen=True)
class Case:
    """One combination, drawn from a number alone."""

    solver: Solver
    objective: Objective
    batch: tuple[int, ...]
    dtype: torch.dtype
    restart: bool
    constrained: bool
    proposing: bool
    seed: int
    text: str

    @property
    def x0(self) -> Tensor:
        x0 = 0.1 * torch.randn(*self.batch, 3, generator=self.generator(1), dtype=self.dtype)
        if isinstance(getattr(self.solver, "distribution", None), Product):
            x0[..., :2] = 0.5  # two choices alike, and a number
        return x0.clamp(-0.3, 0.5)  # inside every box

    @property
    def target(self) -> Tensor:
        return 0.5 * torch.randn(3, generator=self.generator(2), dtype=self.dtype)

    @property
    def noise(self) -> list[Tensor | None]:
        generator = self.generator(3)
        return [self.solver.draw(self.x0, t, generator) for t in range(self.solver.n_iters)]

    def generator(self, part: int) -> Generator:
        return Generator().manual_seed(4 * self.seed + part)

    def solve(self, target: Tensor, mode: backward.Backward, rows: Any = ...) -> Tensor:
        """The answer for some of the rows, by the same noise whatever the mode."""
        given = [None if e is None else e[rows] for e in self.noise]

        def f(x: Tensor) -> Tensor:
            return self.objective(x, target)

        options: dict[str, Any] = {"noise": given, "backward": mode}
        if self.constrained:
            options["constraint"] = lambda x: x[..., :1] - 0.25
        if self.proposing:
            options["proposals"] = (0.5 * self.x0[rows]).unsqueeze(-2)
        solution = minimize(f, self.solver, self.x0[rows], **options)
        if self.restart:  # with another objective, as in warm starts while a model trains
            solution = minimize(lambda x: f(x + 0.1), self.solver, solution.state, **options)
        return solution.x


def measure(count: int, folder: Path) -> Outcome:
    """Cases 0 to count - 1."""
    failures, compared = [], 0
    for seed in range(count):
        case = draw(seed)
        try:
            broken, slopes = check(case)
        except Exception as error:  # none of these combinations is one, but a search may end in a hole
            lost = case.objective is holes and "f must have a finite value in every row" in str(error)
            broken, slopes = [] if lost else [f"{type(error).__name__}: {error}"], False
        compared += slopes
        failures += [f"case {seed}, {case.text}: {what}" for what in broken]
    return Outcome(count, failures, notes=f"{compared:,} gradients against finite differences")


def check(case: Case) -> tuple[list[str], bool]:
    """The laws that are broken, and whether its gradient could be compared with finite differences."""
    target = case.target.requires_grad_()
    x = case.solve(target, backward.Unroll())
    others = [mode for mode in modes(case.solver) if not torch.equal(case.solve(target, mode), x)]
    broken = [f"another answer with {mode}" for mode in others]
    for row in rows(case.batch):
        alone = case.solve(target, backward.Detach(), row)
        if not torch.allclose(alone, x[row], rtol=CLOSE[case.dtype], atol=CLOSE[case.dtype]):
            broken.append(f"row {row} differs when alone, by {(alone - x[row]).abs().max():.2g}")
    box = case.solver.box
    if box is not None and not bool(box.contains(x).all()):
        broken.append("outside the bounds")
    if not bool(x.isfinite().all()):
        broken.append("the answer is not finite")
    if not x.requires_grad:
        return broken, False
    [slope] = torch.autograd.grad(x.sum(), target, retain_graph=True, allow_unused=True)
    if slope is None:
        return broken, False
    if not bool(slope.isfinite().all()):
        return [*broken, "the gradient is not finite"], False
    expected = differences(case) if exact(case.solver) and case.dtype == torch.float64 else None
    if expected is None:
        return broken, False
    if not torch.allclose(slope, expected, rtol=1e-3, atol=1e-5 * max(1.0, float(expected.abs().max()))):
        broken.append(f"gradient {slope.tolist()}, by finite differences {expected.tolist()}")
    return broken, True


def differences(case: Case) -> Tensor | None:
    """d(sum of the answer)/d(target) by central differences; None where two step sizes disagree: a kink."""

    def slope(step: float) -> Tensor:
        sides = []
        for sign in (1, -1):
            moved = [case.target + sign * step * unit for unit in torch.eye(3, dtype=case.dtype)]
            sides.append(torch.stack([case.solve(t, backward.Detach()).sum() for t in moved]))
        return (sides[0] - sides[1]) / (2 * step)

    fine, coarse = slope(STEP), slope(4 * STEP)
    agree = torch.allclose(fine, coarse, rtol=1e-4, atol=1e-6 * max(1.0, float(fine.abs().max())))
    return fine if agree else None


def exact(solver: Solver) -> bool:
    """Is the gradient meant to be that of the computation?

    Low temperatures have a warmer one's, and choices that of the straight-through estimator.
    """
    if isinstance(getattr(solver, "distribution", None), Product):
        return False
    if isinstance(solver, CMAES):
        return solver.tau == 0 or (bool(solver.normalize) and solver.tau >= lowest_smooth(40, 1))
    if not isinstance(solver, DCEM):
        return True
    if solver.ess is not None:
        return False
    return solver.tau == 0 or (
        bool(solver.normalize) and solver.tau >= lowest_smooth(solver.n_samples, solver.n_elite)
    )


def modes(solver: Solver) -> Iterator[backward.Backward]:
    yield backward.Checkpoint()
    if getattr(solver, "stop_below", None) is None:
        yield backward.Truncate(2)
    yield backward.Prune(0.5)
    yield backward.Detach()


def rows(batch: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [] if not batch else [(0,) * len(batch), tuple(size - 1 for size in batch)]


def draw(seed: int) -> Case:
    """A case from its number."""
    chance = random.Random(seed)
    dtype = chance.choice([torch.float32, torch.float64])
    boundary = chance.choice(["clamp", "squash", "truncate"])
    bounds = chance.choice([None, (-1.0, 1.0), (-0.3, 0.5), (-5.0, 50.0)])
    sigma = chance.choice([None, 0.1, 1.0, 10.0])
    full = chance.random() < 0.3 and boundary != "truncate"
    distribution: Any = (FullGaussian if full else Gaussian)(
        sigma=sigma, bounds=bounds, boundary=boundary, estimator=chance.choice(["rank-mu", "likelihood"])
    )
    kind = chance.choice(["dcem", "dcem", "dcem", "ess", "cmaes", "mppi", "mixed", "descent"])
    if kind == "mixed":
        distribution = Product([(Categorical(2), 2), (Gaussian(sigma=sigma), 1)])
    n_iters, samples = chance.choice([1, 3, 8]), chance.choice([20, 41])
    shared: dict[str, Any] = {
        "n_iters": n_iters,
        "n_samples": samples,
        "distribution": distribution,
        "normalize": chance.choice([True, True, "half", "half", False]),
        "returns": chance.choice(["mean", "best"]),
        "sigma_min": chance.choice([0.0, 0.01]),
        "smoothing": chance.choice([0.0, 0.3]),
        "noise": chance.choice([noise.Normal(), noise.Antithetic(), noise.Sobol(), noise.Colored(1.0, 3)]),
        "keep_elites": chance.choice([0, 0, 3]),
        "stop_below": chance.choice([None, None, 1e-3]),
    }
    solver: Solver
    if kind == "ess":
        solver = DCEM(n_elite=4, ess=chance.choice([6.0, 12.0]), **shared)
    elif kind == "cmaes":
        shared["n_samples"] = chance.choice([None, 20])
        solver = CMAES(tau=chance.choice([0.0, 0.05, 1.0]), **shared)
    elif kind in ("dcem", "mixed"):
        tau = chance.choice([0.0, 0.01, 0.3, 1.0, 10.0])
        solver = DCEM(n_elite=chance.choice([1, 4, 10, 2.5]), tau=tau, **shared)
    elif kind == "mppi":
        temperature = chance.choice([0.1, 1.0, 10.0])
        solver = MPPI(temperature=temperature, adapt_sigma=chance.random() < 0.5, **shared)
    else:
        solver = GradientDescent(n_iters=n_iters, n_samples=chance.choice([1, 4]), bounds=bounds)
    name, objective = chance.choice(OBJECTIVES)
    if isinstance(solver, GradientDescent) and name == "holes":
        name, objective = OBJECTIVES[0]
    restart, proposing = chance.random() < 0.25, chance.random() < 0.25
    proposing &= not isinstance(solver, GradientDescent) and kind != "mixed"
    constrained = chance.random() < 0.2 and not isinstance(solver, GradientDescent)
    batch: tuple[int, ...] = chance.choice([(), (3,), (2, 2)])
    extras = {"restarted": restart, "constrained": constrained, "with a proposal": proposing}
    text = ", ".join([repr(solver), name, f"batch {batch}", str(dtype), *(k for k, v in extras.items() if v)])
    return Case(solver, objective, batch, dtype, restart, constrained, proposing, seed, text)


def bowl(x: Tensor, target: Tensor) -> Tensor:
    return (x - target).square().sum(-1)


def waves(x: Tensor, target: Tensor) -> Tensor:
    return bowl(x, target) + 0.3 * torch.sin(5 * (x - target)).sum(-1) + 1e3


def penalty(x: Tensor, target: Tensor) -> Tensor:
    """A finite penalty that dwarfs everything else, on half of the space."""
    return bowl(x, target) + torch.where(x[..., 0] > 0.2, 1e8, 0.0)


def holes(x: Tensor, target: Tensor) -> Tensor:
    """NaN and -inf in bands, finite around the start."""
    bad = torch.where(x[..., 2] > 0, math.nan, -math.inf)
    return torch.where(torch.sin(3 * x[..., 1]) > 0.7, bad, bowl(x, target).sqrt())


OBJECTIVES: list[tuple[str, Objective]] = [
    ("bowl", bowl),
    ("waves", waves),
    ("penalty", penalty),
    ("holes", holes),
]

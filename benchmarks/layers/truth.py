"""Instances of every problem, their true argmins, and the gradients that a perfect layer would give.

All in float64. A closed form where there is one; else many starts, Newton's method, and the implicit function
theorem at the lowest minimum. `disagreement` compares these gradients with finite differences, for which the
argmin is solved again.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.func import hessian, jacfwd, vmap

from energies import ENERGIES, Energy, Pendulum, Projection, Regression

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Instances:
    """θ (B, m); the argmin x (B, n); a loss's derivative to x (B, n), and its gradient to θ (B, m)."""

    theta: Tensor
    x: Tensor
    cotangent: Tensor
    gradient: Tensor

    def part(self, rows: slice) -> "Instances":
        return Instances(self.theta[rows], self.x[rows], self.cotangent[rows], self.gradient[rows])


def instances(name: str, count: int, seed: int = 0) -> Instances:
    generator = torch.Generator().manual_seed(seed)
    energy = ENERGIES[name](torch)
    theta = PARAMETERS[name](count, generator).double()
    x = argmin(name, theta)
    check(name, theta, x)
    cotangent = torch.randn(count, energy.n, generator=generator, dtype=torch.float64)
    return Instances(theta, x, cotangent, gradient(name, theta, x, cotangent))


def argmin(name: str, theta: Tensor) -> Tensor:
    """The true argmin (B, n)."""
    if name == "projection":
        return projected(theta)
    energy: Energy = ENERGIES[name](torch)
    starts = {"quadratic": _zero, "multimodal": _plane, "pendulum": _plans, "regression": _line}[name]
    x = starts(energy, theta)
    for _ in range(3):  # quadratic convergence: these minima are nearly exact already
        x = newton_step(energy, theta, x)
    return x


def check(name: str, theta: Tensor, x: Tensor) -> None:
    """Refuse a truth that is none: where the slope is not 0, or the curvature not positive."""
    energy = ENERGIES[name](torch)
    if not isinstance(energy, Energy):  # the projection: a bisection of one equation
        return
    slope = slopes(energy, theta, x).norm(dim=-1)
    least = torch.linalg.eigvalsh(hessians(energy, theta, x))[:, 0]
    wrong = ~((slope < 1e-8) & (least > 0))  # NaN is wrong
    if wrong.any():
        rows = wrong.nonzero().flatten().tolist()
        raise ValueError(
            f"{name}: the truths of instances {rows} are no minima: slopes up to {slope[wrong].max():.1e}, "
            f"curvatures down to {least[wrong].min():.1e}"
        )


def gradient(name: str, theta: Tensor, x: Tensor, cotangent: Tensor) -> Tensor:
    """dθ⟨cotangent, argmin⟩ (B, m): −∂θ⟨H⁻¹ cotangent, ∇E⟩, and for the projection its own formula."""
    if name == "projection":
        p = x / Projection.c
        slope = Projection.c * p * (1 - p)
        return slope * (cotangent - (slope * cotangent).sum(-1, True) / slope.sum(-1, True))
    energy: Energy = ENERGIES[name](torch)
    solved = torch.linalg.solve(hessians(energy, theta, x), cotangent)
    theta, x = theta.clone().requires_grad_(), x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(energy(x.unsqueeze(-2), theta).sum(), x, create_graph=True)
    return -torch.autograd.grad((slope * solved).sum(), theta)[0]


def disagreement(name: str, given: Instances, step: float = 1e-6) -> float:
    """The largest error of a derivative along a random direction, against central differences of the argmin.

    Relative to the gradient's length times the direction's mean square root, which is 1.
    """
    direction = torch.randn(given.theta.shape, generator=torch.Generator().manual_seed(1)).double()
    ends = []
    for sign in (1, -1):
        theta = given.theta + sign * step * direction
        if name == "projection":
            ends.append(projected(theta))
            continue
        x = given.x  # the same minimum, followed
        for _ in range(4):
            x = newton_step(ENERGIES[name](torch), theta, x)
        ends.append(x)
    difference = ((ends[0] - ends[1]) * given.cotangent).sum(-1) / (2 * step)
    error = (difference - (given.gradient * direction).sum(-1)).abs() / given.gradient.norm(dim=-1)
    return error.max().item()


def projected(theta: Tensor) -> Tensor:
    """c σ(θ + ν) with the ν that makes the sum 1, by bisection."""
    k, c = Projection.k, Projection.c
    low = -theta.amax(-1, keepdim=True) - 50
    high = -theta.amin(-1, keepdim=True) + 50
    for _ in range(100):
        middle = (low + high) / 2
        short = torch.sigmoid(theta + middle).sum(-1, keepdim=True) < k
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return c * torch.sigmoid(theta + (low + high) / 2)


def hessians(energy: Energy, theta: Tensor, x: Tensor) -> Tensor:
    """(B, n, n)"""
    return vmap(hessian(lambda x, theta: energy(x.unsqueeze(-2), theta).squeeze(-1)))(x, theta)


def newton_step(energy: Energy, theta: Tensor, x: Tensor) -> Tensor:
    """One step of Newton's method, downhill where the curvature is negative as well.

    Of the whole step, half of it, a quarter, … the first after which the energy is no higher, else none.
    """
    slope = slopes(energy, theta, x)
    curvature, directions = torch.linalg.eigh(hessians(energy, theta, x))
    along = (directions.mT @ slope.unsqueeze(-1)).squeeze(-1) / curvature.abs().clamp_min(1e-6)
    step = (directions @ along.unsqueeze(-1)).mT  # (B, 1, n)
    sizes = 0.5 ** torch.arange(20, dtype=x.dtype).unsqueeze(-1)
    tried = torch.cat([x.unsqueeze(-2) - sizes * step, x.unsqueeze(-2)], -2)
    no_higher = energy(tried, theta) <= energy(x.unsqueeze(-2), theta) + 1e-12
    return tried[torch.arange(len(x)), no_higher.int().argmax(-1)]


def slopes(energy: Energy, theta: Tensor, x: Tensor) -> Tensor:
    """(B, n)"""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(energy(x.unsqueeze(-2), theta).sum(), x)[0]


def descend(energy: Energy, theta: Tensor, x: Tensor, steps: int) -> Tensor:
    """Levenberg–Marquardt for every row, with a damping of its own."""
    damping = torch.full_like(x[:, :1], 1e-2)
    jacobian = vmap(jacfwd(lambda x, theta: energy.residuals(x.unsqueeze(-2), theta).squeeze(-2)))
    value = energy(x.unsqueeze(-2), theta)
    for _ in range(steps):
        J = jacobian(x, theta)
        slope = (J.mT @ energy.residuals(x.unsqueeze(-2), theta).mT).squeeze(-1)
        curvature = J.mT @ J + damping.unsqueeze(-1) * torch.eye(energy.n, dtype=x.dtype)
        tried = x - torch.linalg.solve(curvature, slope)
        new = energy(tried.unsqueeze(-2), theta)
        better = new < value
        x, value = torch.where(better, tried, x), torch.where(better, new, value)
        damping = torch.where(better, damping / 3, damping * 5).clamp(1e-9, 1e6)
    return x


def _lowest(energy: Energy, theta: Tensor, candidates: Tensor, steps: int) -> Tensor:
    """Of candidates (B, S, n), each led to a minimum, the one with the lowest energy.

    Least squares take it near; where they leave it on a slope or a saddle, Newton's steps go on.
    """
    rows, starts, n = candidates.shape
    many = theta.repeat_interleave(starts, 0)
    found = descend(energy, many, candidates.reshape(-1, n), steps)
    for _ in range(60):
        moving = slopes(energy, many, found).norm(dim=-1) > 1e-9
        if not moving.any():
            break
        found[moving] = newton_step(energy, many[moving], found[moving])
    found = found.view(rows, starts, n)
    return found[torch.arange(rows), energy(found, theta).argmin(-1)]


def _zero(energy: Energy, theta: Tensor) -> Tensor:
    """Newton's first step from 0 is exact: the quadratic's closed form."""
    return torch.zeros(len(theta), energy.n, dtype=theta.dtype)


def _grid(energy: Energy, theta: Tensor, points: Tensor, keep: int) -> Tensor:
    values = torch.cat([energy(points.expand(len(part), -1, -1), part) for part in theta.split(50)])
    return _lowest(energy, theta, points[values.topk(keep, largest=False).indices], 30)


def _plane(energy: Energy, theta: Tensor) -> Tensor:
    side = torch.linspace(-5, 5, 101, dtype=theta.dtype)
    return _grid(energy, theta, torch.cartesian_prod(side, side), 6)


def _line(energy: Energy, theta: Tensor) -> Tensor:
    return _grid(energy, theta, torch.linspace(-3, 3, 601, dtype=theta.dtype).unsqueeze(-1), 6)


def _plans(energy: Energy, theta: Tensor) -> Tensor:
    return _lowest(energy, theta, first_plans(len(theta), energy.n), 40)


def first_plans(count: int, n: int) -> Tensor:
    """(count, 12, n)"""
    generator = torch.Generator().manual_seed(2)
    starts = 3 * torch.randn(count, 12, n, generator=generator, dtype=torch.float64)
    starts[:, 0] = 0
    level = starts[:, 1::2].mean(-1, keepdim=True) * 3
    starts[:, 1::2] = level  # half of them constant torques: a swing one way or the other
    return starts


def _quadratic(count: int, generator: torch.Generator) -> Tensor:
    return torch.cat(
        [torch.randn(count, 8, generator=generator), 0.5 * torch.randn(count, 6, generator=generator)], -1
    )


def _multimodal(count: int, generator: torch.Generator) -> Tensor:
    centre = 0.5 * torch.randn(count, 2, generator=generator)
    height = math.log(0.4) + 0.3 * torch.randn(count, 6, generator=generator)
    phase = 2 * math.pi * torch.rand(count, 6, generator=generator)
    return torch.cat([centre, height, phase], -1)


def _projection(count: int, generator: torch.Generator) -> Tensor:
    return 2 * torch.randn(count, Projection.n, generator=generator)


def _pendulum(count: int, generator: torch.Generator) -> Tensor:
    """States all round the circle, and networks fitted to a pendulum, each a little different."""
    energy = Pendulum(torch)
    weights = _network((4, energy.hidden, 3), generator)

    def loss() -> Tensor:
        angle, speed, torque = (
            (torch.rand(256, 1, generator=generator) * 2 - 1) * s for s in (math.pi, 6, 4)
        )
        faster = speed + 0.1 * (9.81 * angle.sin() + 3 * torque)
        turned = angle + 0.1 * faster
        now, then = ([a.cos(), a.sin(), s] for a, s in ((angle, speed), (turned, faster)))
        return (energy.model(torch.cat(now, -1), torque, weights) - torch.cat(then, -1)).square().mean()

    _fit(weights, loss, 1500)
    angle = (torch.rand(count, 1, generator=generator) * 2 - 1) * math.pi
    start = torch.cat([angle.cos(), angle.sin(), torch.randn(count, 1, generator=generator)], -1)
    return torch.cat([start, _varied(weights, count, generator)], -1)


def _regression(count: int, generator: torch.Generator) -> Tensor:
    """Networks fitted by maximum likelihood over a grid of labels, which favours no solver.

    The labels: z sin(z) / 5 for z in [0, 2π], as in the paper, and the inputs: z / π − 1.
    """
    energy = Regression(torch)
    weights = _network((2, energy.hidden, energy.outputs), generator)
    grid = torch.linspace(-1.5, 1.5, 101).view(1, -1, 1)

    def loss() -> Tensor:
        inputs = 2 * torch.rand(64, 1, generator=generator) - 1
        theta, z = torch.cat([inputs, weights.expand(64, -1)], -1), math.pi * (inputs + 1)
        label = (z * z.sin() / 5).unsqueeze(-1) + 0.1 * torch.randn(64, 1, 1, generator=generator)
        alternatives = torch.logsumexp(-energy(grid.expand(64, -1, -1), theta), -1)
        return (energy(label, theta).squeeze(-1) + alternatives).mean()

    _fit(weights, loss, 1500)
    inputs = 2 * torch.rand(count, 1, generator=generator) - 1
    return torch.cat([inputs, _varied(weights, count, generator)], -1)


PARAMETERS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "quadratic": _quadratic,
    "multimodal": _multimodal,
    "projection": _projection,
    "pendulum": _pendulum,
    "regression": _regression,
}


def _network(sizes: tuple[int, ...], generator: torch.Generator) -> nn.Parameter:
    parts = []
    for wide, narrow in pairwise(sizes):
        parts += [torch.randn(wide * narrow, generator=generator) / wide**0.5, torch.zeros(narrow)]
    return nn.Parameter(torch.cat(parts))


def _fit(weights: nn.Parameter, loss: Callable[[], Tensor], steps: int) -> None:
    adam = torch.optim.Adam([weights], lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for _ in range(steps):
        adam.zero_grad()
        loss().backward()
        adam.step()
        schedule.step()


def _varied(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return weights.detach() * (1 + 0.02 * torch.randn(count, len(weights), generator=generator))

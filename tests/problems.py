"""Objectives f(x, theta) whose minimiser, and its derivative with respect to theta, are known exactly."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """minimise f(·, theta) over R^n or a box, from `start` with a first standard deviation `sigma`."""

    name: str
    f: Callable[[Tensor, Tensor], Tensor]  # (..., n), (m,) -> (...)
    theta: Tensor  # (m,)
    solution: Callable[[Tensor], Tensor]  # theta -> x* (n,), differentiable
    start: Tensor  # (n,)
    sigma: float = 1.0
    bounds: tuple[float, float] | None = None

    @property
    def jacobian(self) -> Tensor:
        """∂x*/∂theta, (n, m)."""
        return torch.func.jacrev(self.solution)(self.theta)


def _vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _rotation(angle: float) -> Tensor:
    c, s = torch.cos(_vector(angle)), torch.sin(_vector(angle))
    return torch.stack([torch.cat([c, -s]), torch.cat([s, c])])


def sphere(x: Tensor, theta: Tensor) -> Tensor:
    return (x - theta).square().sum(-1)


_ROTATED = _rotation(0.7) @ torch.diag(_vector(1.0, 20.0)) @ _rotation(0.7).T
_COUPLED = torch.tensor([[3.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]], dtype=torch.float64)


def _rotated(x: Tensor, theta: Tensor) -> Tensor:
    d = x - theta
    return ((d @ _ROTATED) * d).sum(-1)


def _linear_term(x: Tensor, theta: Tensor) -> Tensor:
    return ((x @ _COUPLED) * x).sum(-1) / 2 - x @ theta


def _quartic(x: Tensor, theta: Tensor) -> Tensor:
    return (x**4 / 4 - theta * x).sum(-1)


def _rosenbrock(x: Tensor, theta: Tensor) -> Tensor:
    return (theta[0] - x[..., 0]) ** 2 + 5 * (x[..., 1] - x[..., 0] ** 2) ** 2


def rastrigin(x: Tensor, theta: Tensor) -> Tensor:
    d = x - theta
    return (d.square() + 1 - torch.cos(2 * torch.pi * d)).sum(-1)


def _tilted_wells(x: Tensor, theta: Tensor) -> Tensor:
    """Two minima, at theta and at -2; the one at theta is lower."""
    return ((x - theta).square() * ((x + 2).square() + 0.5)).sum(-1)


SMOOTH = [
    Problem("sphere", sphere, _vector(0.4, -0.3, 0.2), lambda t: t, _vector(0.0, 0.0, 0.0)),
    Problem("rotated", _rotated, _vector(0.5, -0.6), lambda t: t, _vector(0.0, 0.0)),
    Problem(
        "linear term",
        _linear_term,
        _vector(0.5, -0.2, 0.3),
        lambda t: torch.linalg.solve(_COUPLED, t),
        _vector(0.0, 0.0, 0.0),
    ),
    Problem("quartic", _quartic, _vector(0.7, 1.5), lambda t: t ** (1 / 3), _vector(0.5, 0.5)),
    Problem(
        "rosenbrock", _rosenbrock, _vector(0.8), lambda t: torch.stack([t[0], t[0] ** 2]), _vector(0.0, 0.0)
    ),
]

MULTIMODAL = [
    Problem("rastrigin", rastrigin, _vector(1.2, -0.8), lambda t: t, _vector(0.0, 0.0), sigma=2.0),
    Problem("tilted wells", _tilted_wells, _vector(0.9, 1.1), lambda t: t, _vector(-1.0, -1.0), sigma=2.0),
]

# The first coordinate's optimum lies outside the box, the second's inside.
BOXED = [
    Problem(
        "sphere on a face",
        sphere,
        _vector(1.5, 0.3),
        lambda t: t.clamp(-1, 1),
        _vector(0.0, 0.0),
        sigma=0.5,
        bounds=(-1.0, 1.0),
    ),
    Problem(
        "quartic on a face",
        _quartic,
        _vector(-3.0, 0.2),
        lambda t: (t.sign() * t.abs() ** (1 / 3)).clamp(-1, 1),
        _vector(0.0, 0.0),
        sigma=0.5,
        bounds=(-1.0, 1.0),
    ),
]

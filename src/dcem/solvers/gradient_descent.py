"""Gradient descent, unrolled: the baseline that DCEM is compared with."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from dcem.solvers.base import Evaluate, Record


class DescentState(NamedTuple):
    x: Tensor  # (*B, N, n)
    velocity: Tensor  # (*B, N, n)
    values: Tensor  # (*B, N), at the points before the last step


@dataclass(frozen=True, kw_only=True)
class GradientDescent:
    """x ← x - learning_rate · velocity,  velocity ← momentum · velocity + ∇f(x).

    The gradient steps are part of the graph, so gradients reach whatever f depends on.

    Args:
        n_iters: steps.
        learning_rate: may be a tensor that requires gradients.
        momentum: 0 <= momentum < 1.
        n_samples: starting points: x0 itself, then x0 + sigma·ε. The one whose value is lowest at the last
            evaluation is the result.
        sigma: spread of the further starting points.
    """

    n_iters: int = 10
    learning_rate: float | Tensor = 0.1
    momentum: float = 0.0
    n_samples: int = 1
    sigma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        for name in ("n_iters", "n_samples"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"GradientDescent: {name} must be a positive integer, got {value!r}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"GradientDescent: momentum must lie in [0, 1), got {self.momentum}")
        if not isinstance(self.learning_rate, Tensor) and not self.learning_rate > 0:
            raise ValueError(f"GradientDescent: learning_rate must be positive, got {self.learning_rate}")

    def init(self, x0: Tensor) -> DescentState:
        x = x0.unsqueeze(-2)
        return DescentState(x, torch.zeros_like(x), x.new_full(x.shape[:-1], torch.inf))

    def draw(self, x0: Tensor, t: int, generator: Generator | None) -> Tensor | None:
        if t > 0 or self.n_samples == 1:
            return None
        *batch, n = x0.shape
        shape = (*batch, self.n_samples - 1, n)
        return torch.randn(shape, dtype=x0.dtype, device=x0.device, generator=generator)

    def step(
        self, evaluate: Evaluate, state: DescentState, noise: Tensor | None, t: int
    ) -> tuple[DescentState, Record]:
        x, velocity = state.x, state.velocity
        if noise is not None and x.shape[-2] == 1:  # a restarted solve has its starting points
            x = torch.cat([x, x + self.sigma * noise], dim=-2)
            velocity = torch.zeros_like(x)
        unroll = torch.is_grad_enabled()
        with torch.enable_grad():
            at = x if unroll and x.requires_grad else x.detach().requires_grad_()
            values = evaluate(at, None)
            unroll = unroll and (x.requires_grad or _depends_on_more(values, at))
            if not values.requires_grad:
                raise ValueError(
                    "GradientDescent: f must be differentiable in x, but its values carry no graph"
                )
            # A point with no finite value has no gradient to follow and stays where it is.
            total = torch.where(values.isfinite(), values, 0.0).sum()
            (gradient,) = torch.autograd.grad(total, at, create_graph=unroll)
        velocity = self.momentum * velocity + torch.where(gradient.isfinite(), gradient, 0.0)
        new = DescentState(x - self.learning_rate * velocity, velocity, values if unroll else values.detach())
        return new, Record(t, x, new.values, None, self.result(new), None)

    def result(self, state: DescentState) -> Tensor:
        if state.x.shape[-2] == 1:
            return state.x.squeeze(-2)
        best = torch.where(state.values.isfinite(), state.values, torch.inf).argmin(-1)
        index = best[..., None, None].expand(*best.shape, 1, state.x.shape[-1])
        return state.x.gather(-2, index).squeeze(-2)

    def moving(self, state: DescentState) -> Tensor | None:
        return None


def _depends_on_more(values: Tensor, x: Tensor) -> bool:
    """Does the graph of values hold a leaf other than x? If not, nobody will ask for the unrolled graph."""
    nodes, seen = [values.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if getattr(node, "variable", x) is not x:
            return True
        nodes += [parent for parent, _ in node.next_functions]
    return False

"""The derivative of a minimiser by the implicit function theorem, without the graph of the search."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dcem._checks import can_look, name_row
from dcem._graph import depends_on_more
from dcem.distributions.box import Box


def implicit(
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    box: Box | None,
    damping: float,
    n_iters: int | None,
    tolerance: float | None,
) -> Tensor:
    """x (*B, n), near a minimum of f: (*B, 1, n) -> (*B, 1), as a function of everything f depends on."""
    if not torch.is_grad_enabled():
        return x
    at = x.clone().requires_grad_()
    value = f(at.unsqueeze(-2))
    if not depends_on_more(value, at):
        return x
    (slope,) = torch.autograd.grad(value.sum(), at, create_graph=True)
    free = torch.ones_like(x, dtype=torch.bool)
    if box is not None:  # a coordinate pushed against a bound stays fixed
        free = ~box.pinned(x, slope.detach())
    steps = 2 * x.shape[-1] + 5 if n_iters is None else n_iters
    precision = torch.finfo(x.dtype).eps ** 0.75 if tolerance is None else tolerance
    solved = _Solved.apply(slope, at, free, damping, steps, precision)
    # A constant offset of f does not move x̂, but belongs to its graph: its gradient is zero, not missing.
    return x + solved + 0 * torch.nan_to_num(value)


class _Solved(torch.autograd.Function):
    """Zero in the forward pass. The backward solves H u = g and passes −u to ∇f: θ gets −uᵀ ∂∇f/∂θ."""

    @staticmethod
    def forward(
        ctx: Any, slope: Tensor, at: Tensor, free: Tensor, damping: float, steps: int, precision: float
    ) -> Tensor:
        ctx.graph = slope, at  # kept with their graph, which gives the Hessian
        ctx.settings = free, damping, steps, precision
        return torch.zeros_like(slope)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        slope, at = ctx.graph
        free, damping, steps, precision = ctx.settings

        def hessian(v: Tensor) -> Tensor:
            with torch.enable_grad():
                (product,) = torch.autograd.grad(slope, at, v, retain_graph=True, allow_unused=True)
            product = torch.zeros_like(v) if product is None else product
            return (product + damping * v) * free

        u, bad = conjugate_gradients(hessian, grad * free, steps, precision)
        if can_look(bad) and bad.any():
            raise ValueError(
                "Implicit: f must have a positive definite Hessian at the solution, but it curves downwards "
                f"or not at all{name_row(bad)}; is the solution a minimum? If so, damping > 0 helps"
            )
        u = torch.where(bad.unsqueeze(-1), torch.nan, u)
        return -u, None, None, None, None, None


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], b: Tensor, steps: int, tolerance: float
) -> tuple[Tensor, Tensor]:
    """u (*B, n) with A u = b, with a symmetric A per row, and the rows (*B,) where A is not positive."""
    u, residual = torch.zeros_like(b), b
    direction, size = b, b.square().sum(-1)
    enough = tolerance**2 * size
    bad = torch.zeros_like(size, dtype=torch.bool)
    for _ in range(steps):
        active = (size > enough) & ~bad
        if can_look(active) and not active.any():
            break
        image = product(direction)
        curvature = (direction * image).sum(-1)
        flat = (
            torch.finfo(b.dtype).eps
            * torch.linalg.vector_norm(direction, dim=-1)
            * torch.linalg.vector_norm(image, dim=-1)
        )
        bad = bad | (active & ~(curvature > flat))
        active = active & ~bad
        length = torch.where(active, size / torch.where(active, curvature, 1.0), 0.0).unsqueeze(-1)
        u = u + length * direction
        residual = residual - length * image
        before, size = size, torch.where(active, residual.square().sum(-1), size)
        turn = torch.where(active, size / torch.where(active, before, 1.0), 0.0).unsqueeze(-1)
        direction = residual + turn * direction
    return u, bad

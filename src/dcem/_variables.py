"""Flatten variables of any shape and structure into the vectors that solvers search over."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Variables:
    """How x0 becomes a tensor (*B, n), and points (*B, N, n) become what the objective takes.

    A tensor (*B, *event) with ``event_dims`` trailing dimensions, or any nesting of dicts, lists, tuples and
    named tuples of tensors (B, *event), each with the batch first.
    """

    def __init__(self, x0: Any, event_dims: int) -> None:
        leaves, self._spec = pytree.tree_flatten(x0)
        if not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
            kinds = ", ".join(sorted({type(leaf).__name__ for leaf in leaves})) or "nothing"
            raise TypeError(
                f"minimize: x0 must be a tensor, a nesting of tensors or the state of a solution, got {kinds}"
            )
        single = isinstance(x0, Tensor)
        for leaf in leaves:
            if not leaf.is_floating_point() or leaf.ndim < (event_dims if single else 1):
                shape = f"(*B, {', '.join('n' * event_dims)})" if single else "(B, ...)"
                raise ValueError(
                    f"minimize: x0 must be a floating-point tensor of shape {shape}, got {leaf.dtype} of "
                    f"shape {tuple(leaf.shape)}"
                )
        self.batch = leaves[0].shape[: leaves[0].ndim - event_dims] if single else leaves[0].shape[:1]
        if any(leaf.shape[: len(self.batch)] != self.batch for leaf in leaves):
            shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves)
            raise ValueError(f"minimize: tensors of x0 must share their first dimension, got shapes {shapes}")
        self._events = [leaf.shape[len(self.batch) :] for leaf in leaves]
        self.plain = single and event_dims == 1

    def flat(self, x0: Any, dims: int = 0) -> Tensor:
        """x0, with ``dims`` more dimensions after the batch, as one tensor (*B, ..., n)."""
        if self.plain:
            return x0
        rows = [leaf.flatten(len(self.batch) + dims) if event else leaf.unsqueeze(-1)
                for leaf, event in zip(pytree.tree_leaves(x0), self._events, strict=True)]  # fmt: skip
        return torch.cat(rows, dim=-1)

    def candidates(self, x: Any) -> Tensor:
        """Points in the structure of x0, each leaf (*B, P, *event), as one tensor (*B, P, n)."""
        leaves, spec = pytree.tree_flatten(x)
        rows = len(self.batch)
        count = {leaf.shape[rows] for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim > rows}
        expected = [(*self.batch, *count, *event) for event in self._events]
        if spec != self._spec or [getattr(leaf, "shape", None) for leaf in leaves] != expected:
            asked = ", ".join(
                f"({', '.join(map(str, [*self.batch, 'P', *event]))})" for event in self._events
            )
            got = ", ".join(
                str(tuple(leaf.shape)) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves
            )
            raise ValueError(
                f"minimize: proposals must be P points in the structure of x0, of shape {asked}, got {got}"
            )
        return self.flat(x, dims=1)

    def shaped(self, x: Tensor) -> Any:
        """Points x (..., n) in the structure of x0, each leaf (..., *event)."""
        if self.plain:
            return x
        parts = x.split([math.prod(event) for event in self._events], dim=-1)
        leaves = [
            part.reshape(*x.shape[:-1], *event) for part, event in zip(parts, self._events, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self._spec)

    def objective(self, f: Callable[[Any], Tensor]) -> Callable[[Tensor], Tensor]:
        """f as a function of points (*B, N, n)."""
        return f if self.plain else lambda x: f(self.shaped(x))

"""An argmin as a layer: predictions that minimise a learned energy."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils import _pytree as pytree

from dcem._checks import check_callable
from dcem._learned import register_settings
from dcem._minimize import Solution, fixed_noise, minimize
from dcem.backward import Backward, Unroll
from dcem.solvers import Solver


class Argmin(nn.Module):
    """ŷ(x) = argmin_y E(x, y), differentiable in x and in everything that the energy depends on.

    Learned settings of the solver (a `Parameter`, `dcem.Positive`) are among the layer's parameters.

    Args:
        energy: E(x, y), values (*B, N) for N candidates y (*B, N, n) of every input. x comes as (*B, 1, m),
            so that it broadcasts against the candidates. Any callable; the parameters of a module become the
            layer's own.
        solver: any solver of `dcem`, or your own; to train the energy, `DCEM(tau=1.0, normalize=True)`.
        n: the dimension of y, or its shape: (3, 4) for matrices, which the energy receives as (*B, N, 3, 4).
        backward: how to differentiate, see `dcem.backward`.
        input_dims: number of trailing dimensions of x that form one input: 3 for images (*B, C, H, W), which
            the energy receives as (*B, 1, C, H, W).
        seed: in evaluation mode, `layer.eval()`, use the noise of this seed in every call and for every row,
            so that equal inputs give equal outputs, alone or in a batch. None: new noise.

    Inputs can be any nesting of dicts, tuples and lists of tensors (B, ...), with the batch dimension first.

    >>> energy = lambda x, y: (y - x.square()).square().sum(-1)
    >>> square = Argmin(energy, DCEM(n_iters=20, distribution=Gaussian(sigma=3.0)), n=2)
    >>> x = torch.tensor([[1.0, 0.0], [0.5, -1.0], [1.5, 1.0]])
    >>> torch.allclose(square(x), x.square(), atol=0.1)
    True
    """

    def __init__(
        self,
        energy: Callable[[Any, Tensor], Tensor],
        solver: Solver,
        n: int | Sequence[int],
        backward: Backward = Unroll(),  # noqa: B008 (immutable)
        input_dims: int = 1,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_callable("Argmin: energy", energy)
        shape = (n,) if isinstance(n, int) else tuple(n)
        if not shape or not all(isinstance(size, int) and size >= 1 for size in shape):
            raise ValueError(f"Argmin: n must be a positive integer or a shape of them, got {n!r}")
        if not isinstance(solver, Solver):
            raise TypeError(f"Argmin: solver must be a solver such as DCEM(), got {solver!r}")
        self.energy, self.solver, self.n, self.backward = energy, solver, n, backward
        self.input_dims, self.seed, self._shape = input_dims, seed, shape
        register_settings(self, solver)

    def forward(self, x: Any, y0: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """ŷ (*B, n) for inputs x (*B, m), searched from y0 (*B, n), by default from zero."""
        return self.solve(x, y0, generator=generator, cost=False).x

    def solve(
        self, x: Any, y0: Tensor | None = None, *, n_iters: int | None = None, **options: Any
    ) -> Solution:
        """The whole solution, not only ŷ; `options` are those of `dcem.minimize`.

        `n_iters` replaces the solver's number of iterations, for example to refine a prediction at test time.
        """
        batch, like = self._batch(x)
        # The search needs more precision than its result: half precision could not tell samples apart.
        dtype = torch.promote_types(like.dtype, torch.float32)
        expected = (*batch, *self._shape)
        if y0 is None:
            y0 = like.new_zeros(expected, dtype=dtype)
        elif y0.shape != expected:
            raise ValueError(f"Argmin: y0 must have shape {expected}, got {tuple(y0.shape)}")
        solver: Any = self.solver if n_iters is None else replace(self.solver, n_iters=n_iters)  # type: ignore[type-var]
        if self.seed is not None and not self.training and options.get("noise") is None:
            rows = y0.new_zeros(*batch, math.prod(self._shape))
            options["noise"] = fixed_noise(solver, rows, self.seed)
        given = pytree.tree_map(lambda leaf: leaf.unsqueeze(len(batch)), x)
        options = {"backward": self.backward, "event_dims": len(self._shape), **options}
        sol = minimize(lambda y: self.energy(given, y.to(like.dtype)), solver, y0.to(dtype), **options)
        return sol._replace(x=sol.x.to(like.dtype))

    def _batch(self, x: Any) -> tuple[torch.Size, Tensor]:
        """*B of an input, and a tensor of it."""
        leaves = pytree.tree_leaves(x)
        tensors = all(isinstance(leaf, Tensor) for leaf in leaves) and leaves
        dims = self.input_dims if isinstance(x, Tensor) else None
        first = next((leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()), None)
        if not tensors or first is None or first.ndim < (1 if dims is None else dims):
            got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            shape = "(*B, m)" if self.input_dims == 1 else f"(*B, {', '.join('m' * self.input_dims)})"
            raise ValueError(
                f"Argmin: x must be a floating-point tensor of shape {shape}, or a nesting of tensors "
                f"(B, ...), got {got}"
            )
        batch = first.shape[:1] if dims is None else first.shape[: first.ndim - dims]
        if any(leaf.shape[: len(batch)] != batch for leaf in leaves):
            shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves)
            raise ValueError(f"Argmin: tensors of x must share their first dimension, got shapes {shapes}")
        return batch, first

    def extra_repr(self) -> str:
        return f"n={self.n}, solver={self.solver}"

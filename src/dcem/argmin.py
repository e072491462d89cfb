"""An argmin as a layer: predictions that minimise a learned energy."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Generator, Tensor, nn

from dcem._minimize import Solution, minimize
from dcem.backward import Unroll
from dcem.solvers import Solver


class Argmin(nn.Module):
    """ŷ(x) = argmin_y E(y | x), differentiable in x and in whatever the energy depends on.

    Args:
        energy: E(x, y), values (*B, N) for N candidates y (*B, N, n) of every input. x comes as (*B, 1, m),
            so that it broadcasts against the candidates. Any callable; the parameters of a module become the
            layer's own.
        solver: `DCEM`, `GradientDescent`, `MPPI` or your own.
        n: the dimension of y.
        backward: how to differentiate, see `dcem.backward`.

    >>> energy = lambda x, y: (y - x.square()).square().sum(-1)
    >>> square = Argmin(energy, DCEM(n_iters=20, distribution=Gaussian(sigma=3.0)), n=2)
    >>> x = torch.tensor([[1.0, 0.0], [0.5, -1.0], [1.5, 1.0]])
    >>> torch.allclose(square(x), x.square(), atol=0.1)
    True
    """

    def __init__(
        self,
        energy: Callable[[Tensor, Tensor], Tensor],
        solver: Solver,
        n: int,
        backward: Unroll = Unroll(),  # noqa: B008 (immutable)
    ) -> None:
        super().__init__()
        if not callable(energy):
            raise TypeError(f"Argmin: energy must be callable, got {type(energy).__name__}")
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"Argmin: n must be a positive integer, got {n!r}")
        self.energy, self.solver, self.n, self.backward = energy, solver, n, backward

    def forward(self, x: Tensor, y0: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """ŷ (*B, n) for inputs x (*B, m), searched from y0 (*B, n), by default from zero."""
        return self.solve(x, y0, generator=generator, cost=False).x

    def solve(
        self, x: Tensor, y0: Tensor | None = None, *, n_iters: int | None = None, **options: Any
    ) -> Solution:
        """The whole solution, not only ŷ; `options` are those of `dcem.minimize`.

        `n_iters` replaces the solver's number of iterations, for example to refine an answer at test time.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim == 0:
            got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"Argmin: x must be a floating-point tensor of shape (*B, m), got {got}")
        expected = (*x.shape[:-1], self.n)
        if y0 is None:
            y0 = x.new_zeros(expected)
        elif y0.shape != expected:
            raise ValueError(f"Argmin: y0 must have shape {expected}, got {tuple(y0.shape)}")
        solver: Any = self.solver if n_iters is None else replace(self.solver, n_iters=n_iters)  # type: ignore[type-var]
        given = x.unsqueeze(-2)
        return minimize(lambda y: self.energy(given, y), solver, y0, backward=self.backward, **options)

    def extra_repr(self) -> str:
        return f"n={self.n}, solver={self.solver}"

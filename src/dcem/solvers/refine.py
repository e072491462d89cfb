"""Gradient steps on the best samples, inside a search."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dcem._checks import holds, same
from dcem._graph import with_gradient
from dcem.distributions import Distribution, FullGaussian, Gaussian
from dcem.solvers.base import Evaluate


@dataclass(frozen=True, eq=False)
class Refine:
    """The best samples of an iteration take gradient steps, and take part in the next one.

    A step goes where f falls most within the distribution, and is some of its standard deviations long:

        u − length · Σ∇f / √(∇fᵀ Σ∇f)

    So neither the scale of f nor that of x matters, and steps shrink as the search converges. One gradient
    serves steps of several lengths, a line search whose points are samples. They come in place of as many
    new ones and have to be better to count: a step too far does no harm.

    Every iteration evaluates f once more, with its gradient, at `n` points. The steps are part of the graph:
    where the search is unrolled, the backward pass takes second derivatives of f.

    Args:
        n: how many of the best samples.
        lengths: of the steps that each of them takes, positive; a tensor (S,) may require gradients.

    >>> solver = DCEM(n_samples=20, n_elite=5, n_iters=15, refine=Refine())
    """

    n: int = 1
    lengths: Sequence[float] | Tensor = (0.3, 1.0, 3.0)

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or self.n < 1:
            raise ValueError(f"Refine: n must be a positive integer, got {self.n!r}")
        some = isinstance(self.lengths, Tensor | Sequence) and len(self.lengths) > 0
        if not some or not holds(torch.as_tensor(self.lengths), lambda x: x > 0):
            raise ValueError(f"Refine: lengths must be positive numbers, got {self.lengths!r}")

    @property
    def count(self) -> int:
        """How many samples it generates."""
        return self.n * len(self.lengths)

    def check(self, distribution: Distribution, name: str) -> None:
        """Raise TypeError if samples of this distribution cannot take a gradient step."""
        if not isinstance(distribution, Gaussian | FullGaussian):
            raise TypeError(
                f"{name}: refine must be left out unless the distribution is a Gaussian or a FullGaussian, "
                f"got {distribution!r}"
            )

    def __eq__(self, other: object) -> bool:
        return same(self, other)

    __hash__ = object.__hash__

    def samples(self, evaluate: Evaluate, distribution: Distribution, phi: Any, best: Tensor) -> Tensor:
        """Samples (*B, count, n) from the best ones (*B, n_best, n)."""
        _, slope = with_gradient(lambda u: evaluate(distribution.decode(u), None), best, "Refine")
        if hasattr(phi, "scale_tril"):
            whitened = slope @ phi.scale_tril
            step = whitened @ phi.scale_tril.mT
        else:
            sigma = phi.sigma.unsqueeze(-2)
            whitened, step = sigma * slope, sigma.square() * slope
        size = torch.linalg.vector_norm(whitened, dim=-1, keepdim=True)
        usable = (size > 0) & size.isfinite()
        step = torch.where(usable, step / torch.where(usable, size, 1.0), 0.0)
        u = torch.cat([best - length * step for length in self.lengths], dim=-2)
        box = distribution.box
        return u if box is None or box.boundary == "squash" else box.clamp(u)

"""Gradient steps on the best samples, inside a search."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dcem._checks import Settings, check_count, holds
from dcem._graph import with_gradient
from dcem.distributions import Distribution, FullGaussian, Gaussian
from dcem.solvers.base import Evaluate


@dataclass(frozen=True, eq=False)
class Refine(Settings):
    """Gradient steps from the best samples of an iteration, as candidates of the next one.

    A step follows the gradient, preconditioned by the distribution, for a number of standard deviations:

        u − length · Σ∇f / √(∇fᵀ Σ∇f)

    So steps do not depend on the scale of f or x, and shrink as the search converges. One gradient gives
    steps of several lengths, like a line search. The resulting points replace as many new samples and compete
    with the others, so a step that is too long does no harm.

    Every iteration evaluates f once more, with its gradient, at `n` points. The steps are part of the graph:
    if the search is unrolled, the backward pass needs second derivatives of f.

    Args:
        n: number of best samples that take steps.
        lengths: lengths of the steps in standard deviations, positive; a tensor (S,) may require gradients.

    >>> solver = DCEM(n_samples=20, n_elite=5, n_iters=15, refine=Refine())
    """

    n: int = 1
    lengths: Sequence[float] | Tensor = (0.3, 1.0, 3.0)

    def __post_init__(self) -> None:
        check_count("Refine: n", self.n)
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

"""What a sampling distribution must do."""

from abc import ABC, abstractmethod
from typing import Any, Self

import torch
from torch import Tensor

from dcem._checks import Settings
from dcem.distributions.box import Box, first_mean


class Distribution(Settings, ABC):
    """A family g_φ over R^n, batched over any leading dimensions *B: a frozen record of settings.

    Its state φ is a NamedTuple of tensors with at least the fields (or properties) `mean` and `sigma`, both
    (*B, n). Samples live in coordinates of the family's own choosing, where it is fitted; `decode` takes them
    to the domain of the objective (they differ only for squashed bounds).
    """

    box: Box | None = None
    """The bounds of the domain."""

    @abstractmethod
    def init(self, x0: Tensor) -> Any:
        """φ₁ around the point x0 (*B, n)."""

    @abstractmethod
    def sample(self, phi: Any, noise: Tensor) -> Tensor:
        """Samples (*B, N, n), a differentiable function of φ and standard normal noise (*B, N, n)."""

    @abstractmethod
    def fit(self, phi: Any, u: Tensor, w: Tensor, sigma_min: float) -> Any:
        """The next φ, from the last one and samples u (*B, N, n) with weights w (*B, N) of any sum."""

    def draw(self, phi: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Samples, and the points of the objective's domain that they stand for, each (*B, N, n)."""
        u = self.sample(phi, noise)
        return u, self.decode(u)

    def decode(self, u: Tensor) -> Tensor:
        """Points of the objective's domain for samples, or for a mean, u (..., n)."""
        return self.box.squash(u) if self.box and self.box.boundary == "squash" else u

    def encode(self, x: Tensor) -> Tensor:
        """Samples for points x (..., n) of the objective's domain: the inverse of `decode`."""
        return first_mean(self.box, x, type(self).__name__)

    def answer(self, phi: Any) -> Tensor:
        """The point of the domain (*B, n) that φ represents as the solution of a search."""
        return self.decode(phi.mean)

    def blend(self, new: Any, old: Any, share: float | Tensor) -> Any:
        """A distribution between the two: `share`, a number or one per row (*B,), of the old one."""
        parts = (
            torch.lerp(a, b, over_batch(share, a, new.mean.ndim - 1)) for a, b in zip(new, old, strict=True)
        )
        return type(new)(*parts)

    def widen(self, phi: Any, factor: float | Tensor) -> Any:
        """The same distribution, its standard deviation times a number, or one per row (*B,).

        For states whose `sigma` is a field; override it for others.
        """
        return phi._replace(sigma=phi.sigma * over_batch(factor, phi.sigma, phi.mean.ndim - 1))

    def recentre(self, phi: Any, mean: Tensor) -> Any:
        """The same distribution around another mean (*B, n)."""
        return phi._replace(mean=mean)

    def within(self, box: Box, steps: int = 1) -> Self:
        """The same family inside `box`, which bounds each of ``steps`` parts of x, of equal size.

        A family that does not support bounds is returned unchanged.
        """
        return self

    def paced(self, n_iters: int) -> Self:
        """The same family for a search of this many iterations, if its rates depend on that."""
        return self


def over_batch(share: float | Tensor, like: Tensor, batch_ndim: int) -> float | Tensor:
    """A share for every row, shaped to broadcast against `like` (*B, ...)."""
    if not isinstance(share, Tensor) or share.ndim == 0:
        return share
    return share.reshape(share.shape + (1,) * (like.ndim - batch_ndim))

"""What a sampling distribution must do."""

from typing import Any, Protocol

from torch import Tensor


class Distribution(Protocol):
    """A family g_φ over R^n, batched over any leading dimensions *B.

    Its state φ is a NamedTuple of tensors with at least the fields (or properties) `mean` and `sigma`, both
    (*B, n). Samples live in coordinates of the family's own choosing, where it is fitted; `decode` takes them
    to the domain of the objective (they differ only for squashed bounds).
    """

    def init(self, x0: Tensor) -> Any:
        """φ₁ around the point x0 (*B, n)."""

    def sample(self, phi: Any, noise: Tensor) -> Tensor:
        """Samples (*B, N, n), a differentiable function of φ and standard normal noise (*B, N, n)."""

    def decode(self, u: Tensor) -> Tensor:
        """Points of the objective's domain for samples, or for a mean, u (..., n)."""

    def fit(self, u: Tensor, w: Tensor, sigma_min: float) -> Any:
        """Weighted maximum likelihood: φ for samples u (*B, N, n) with weights w (*B, N) of any sum."""

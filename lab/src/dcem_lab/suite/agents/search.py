"""Searches that start from a policy's plan without trusting it: half of their first samples ignore it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dcem import DCEM, MPPI

try:
    from dcem_lab.suite.agents import search_triton
except ImportError:  # no Triton on a machine without CUDA
    search_triton = None  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True, eq=False)
class _FromPolicy:
    """A sampling solver whose first mean is a policy's plan.

    Args:
        broad: in the first iteration, the second half of the samples is around zero, with this standard
            deviation; None for all of them around the first mean.
    """

    broad: float | None = None

    def step(self, evaluate: Any, state: Any, noise: Tensor, t: int) -> tuple[Any, Any]:
        if t == 0 and self.broad is not None:
            near, far = noise.tensor_split(2, dim=-2)
            mean, sigma = state.phi.mean.unsqueeze(-2), state.phi.sigma.unsqueeze(-2)
            noise = torch.cat([near, (self.broad * far - mean) / sigma], dim=-2)
        return super().step(evaluate, state, noise, t)  # type: ignore[misc]


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftTopK(_FromPolicy, DCEM):  # type: ignore[misc]
    """`DCEM` from a policy's plan."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightedElites(_FromPolicy, MPPI):  # type: ignore[misc]
    """The n_elite best samples, weighted by softmax(−v / temperature) of the (normalised) values v.

    >>> search = WeightedElites(n_samples=4, n_elite=2, temperature=0.5)
    >>> search.weights(torch.tensor([3.0, 1.0, 2.0, 4.0]), t=0).count_nonzero()
    tensor(2)
    """

    n_elite: int = 10
    adapt_sigma: bool = True

    def weights(self, values: Tensor, t: int) -> Tensor:
        if self._in_one_launch(values):
            return search_triton.elite_weights(values, self.n_elite, float(self.temperature))
        weights = super().weights(values, t)
        least = weights.topk(self.n_elite, dim=-1).values[..., -1:]
        return torch.where(weights >= least, weights, 0.0)

    def _in_one_launch(self, values: Tensor) -> bool:
        plain = self.normalize is True and not isinstance(self.temperature, Tensor)
        learning = torch.is_grad_enabled() and values.requires_grad
        usual = values.is_cuda and values.dtype == torch.float32 and not learning
        return plain and usual and search_triton is not None and values.shape[-1] <= search_triton.LIMIT

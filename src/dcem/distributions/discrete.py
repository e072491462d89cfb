"""Discrete variables as zeros and ones: binary, and categorical as one-hot."""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from dcem._checks import can_look, check
from dcem._graph import zero_with_graph
from dcem.distributions.base import Distribution, over_batch
from dcem.distributions.box import Box


class Probabilities(NamedTuple):
    mean: Tensor  # (*B, n), the probability that each number of x is one

    @property
    def sigma(self) -> Tensor:
        """Standard deviation of every number, (*B, n)."""
        return (self.mean * (1 - self.mean)).clamp_min(0).sqrt()


class Corners(Box):
    """The corners of the unit box: points cannot move by small steps."""

    def pinned(self, x: Tensor, slope: Tensor) -> Tensor:
        return torch.ones_like(x, dtype=torch.bool)


@dataclass(frozen=True, eq=False)
class Discrete(Distribution):
    """What `Bernoulli` and `Categorical` share: probabilities, refitted by weighted frequencies.

    Samples are constants: they jump where a probability crosses a threshold of the noise. Gradients pass
    through the weights into the probabilities, p = Σ w x / Σ w, and are exact for the given samples. An
    iteration without smoothing forgets the probabilities before it, and with them their gradients.

    The answer of a solve is the most likely point, all zeros and ones; its gradient is that of the
    probabilities, which are the `mean` of the solution's state.

    Args:
        spread: fraction of the uniform distribution in the initial one, the rest being x0. 0 < spread <= 1; a
            tensor may require gradients.
        floor: fraction of the uniform distribution in every refit, so that no category dies out; more if
            required by a solver's `sigma_min`.
    """

    spread: float | Tensor = field(default=0.5, kw_only=True)
    floor: float = field(default=0.001, kw_only=True)

    box: ClassVar[Box] = Corners(0.0, 1.0)  # type: ignore[misc]

    def __post_init__(self) -> None:
        name = type(self).__name__
        check(f"{name}: spread", self.spread, "satisfy 0 < spread <= 1", lambda x: (x > 0) & (x <= 1))
        if not 0 <= self.floor <= 1:
            raise ValueError(f"{name}: floor must satisfy 0 <= floor <= 1, got {self.floor}")

    @property
    @abstractmethod
    def even(self) -> float:
        """The probability of a one without prior knowledge."""

    @abstractmethod
    def widen(self, phi: Probabilities, factor: float | Tensor) -> Probabilities:
        """The odds to the power of 1 / factor: above 1 they are more even."""

    @abstractmethod
    def mode(self, p: Tensor) -> Tensor:
        """The most likely point for probabilities p (..., n)."""

    def init(self, x0: Tensor) -> Probabilities:
        return Probabilities(x0 + self.spread * (self.even - x0))

    def fit(self, phi: Probabilities, u: Tensor, w: Tensor, sigma_min: float) -> Probabilities:
        p = ((w / w.sum(-1, keepdim=True)).unsqueeze(-2) @ u).squeeze(-2)
        # σ² = p (1 - p) >= sigma_min² for the least probable, or even odds if no p reaches that.
        least = (1 - math.sqrt(max(0.0, 1 - 4 * sigma_min**2))) / 2
        share = max(self.floor, min(1.0, least / self.even))
        return Probabilities(p + share * (self.even - p))

    def encode(self, x: Tensor) -> Tensor:
        return self.mode(x)

    def answer(self, phi: Probabilities) -> Tensor:
        return self.mode(phi.mean) + zero_with_graph(phi.mean)

    def within(self, box: Box, steps: int = 1) -> Self:
        for bound, fits in ((box.low, lambda b: b <= 0), (box.high, lambda b: b >= 1)):
            if (not isinstance(bound, Tensor) or can_look(bound)) and not fits(torch.as_tensor(bound)).all():
                raise ValueError(
                    f"{type(self).__name__}: the bounds must hold 0 and 1, which its samples are made of, "
                    f"got ({box.low}, {box.high})"
                )
        return self


@dataclass(frozen=True, eq=False)
class Bernoulli(Discrete):
    """n independent binary variables: every number of x is 0 or 1. See `Discrete` for settings and gradients.

    x0 are the initial probabilities, mixed with uniform ones.

    >>> solver = DCEM(distribution=Bernoulli(), n_iters=5)
    >>> wanted = torch.tensor([1.0, 0.0, 1.0, 1.0])
    >>> minimize(lambda x: (x - wanted).abs().sum(-1), solver, torch.full((4,), 0.5)).x
    tensor([1., 0., 1., 1.])
    """

    even = 0.5

    def sample(self, phi: Probabilities, noise: Tensor) -> Tensor:
        return (torch.special.ndtr(-noise) < phi.mean.unsqueeze(-2)).to(noise.dtype)

    def widen(self, phi: Probabilities, factor: float | Tensor) -> Probabilities:
        factor = over_batch(factor, phi.mean, phi.mean.ndim - 1)
        return Probabilities(torch.sigmoid(torch.logit(phi.mean) / factor))

    def mode(self, p: Tensor) -> Tensor:
        return (p > 0.5).to(p.dtype)


@dataclass(frozen=True, eq=False)
class Categorical(Discrete):
    """Categorical variables: every c numbers of x are one-hot. See `Discrete` for the gradients.

    x0 are the initial probabilities, mixed with uniform ones; zeros mean uniform. With n = 3 c numbers in x0
    there are three categorical variables.

    Args:
        choices: c, number of categories.

    >>> solver = DCEM(distribution=Categorical(3), n_iters=5)
    >>> price = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]]).flatten()
    >>> minimize(lambda x: x @ price, solver, torch.zeros(6)).x
    tensor([0., 1., 0., 1., 0., 0.])
    """

    choices: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.choices, int) or self.choices < 2:
            raise ValueError(f"Categorical: choices must be an integer of at least 2, got {self.choices!r}")

    @property
    def even(self) -> float:
        return 1 / self.choices

    def init(self, x0: Tensor) -> Probabilities:
        self._check_size(x0.shape[-1], "x0")
        odds = self._blocks(x0)
        total = odds.sum(-1, keepdim=True)
        known = total > 0
        odds = torch.where(known, odds / torch.where(known, total, 1.0), self.even)
        return super().init(odds.flatten(-2))

    def sample(self, phi: Probabilities, noise: Tensor) -> Tensor:
        # The first arrival of exponential clocks with rates p: choice i with probability exactly p_i.
        noise = noise.to(torch.promote_types(noise.dtype, torch.float32))
        return self.mode(phi.mean.unsqueeze(-2) / -torch.special.log_ndtr(noise)).to(phi.mean.dtype)

    def widen(self, phi: Probabilities, factor: float | Tensor) -> Probabilities:
        factor = over_batch(factor, phi.mean, phi.mean.ndim - 1)
        return Probabilities(self._blocks(phi.mean.log() / factor).softmax(-1).flatten(-2))

    def mode(self, p: Tensor) -> Tensor:
        p = self._blocks(p.detach())
        return torch.zeros_like(p).scatter(-1, p.argmax(-1, keepdim=True), 1.0).flatten(-2)

    def within(self, box: Box, steps: int = 1) -> Self:
        if isinstance(box.low, Tensor) and box.low.ndim:
            self._check_size(box.low.shape[-1], "every action")
        return super().within(box, steps)

    def _blocks(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.choices))

    def _check_size(self, n: int, what: str) -> None:
        if n % self.choices:
            raise ValueError(
                f"Categorical: {what} must have a multiple of choices = {self.choices} numbers, got {n}"
            )

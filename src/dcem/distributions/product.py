"""Distributions side by side, each over its own part of x."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from dcem._checks import check_count
from dcem.distributions.base import Distribution
from dcem.distributions.box import Box


class ProductState(NamedTuple):
    mean: Tensor  # (*B, n)
    sigma: Tensor  # (*B, n)
    parts: tuple[Any, ...]  # the state of every part


@dataclass(frozen=True, eq=False)
class Product(Distribution):
    """Independent distributions over consecutive parts of x: discrete and continuous variables in one search.

    Args:
        parts: pairs of a distribution and its number of dimensions in x, in order. If x0 is a nesting of
            tensors, that is the order of its leaves.
        steps: number of repetitions of the parts in x. `MPC` sets it to its horizon, so that the parts
            describe one action.

    >>> mixed = Product([(Categorical(3), 3), (Gaussian(sigma=2.0), 5)])
    >>> price = torch.tensor([3.0, 1.0, 2.0])
    >>> f = lambda x: x["gear"] @ price + (x["u"] - x["gear"][..., 1:2]).square().sum(-1)
    >>> x0 = {"gear": torch.zeros(1, 3), "u": torch.zeros(1, 5)}
    >>> x = minimize(f, DCEM(distribution=mixed, n_iters=20, tau=0.1), x0).x
    >>> x["gear"], bool(((x["u"] - 1).abs() < 0.1).all())
    (tensor([[0., 1., 0.]]), True)
    """

    parts: Sequence[tuple[Distribution, int]]
    steps: int = 1

    def __post_init__(self) -> None:
        pairs = (tuple(part) if isinstance(part, Sequence) else (part,) for part in self.parts)
        object.__setattr__(self, "parts", tuple(pairs))
        for part in self.parts:
            if len(part) != 2 or not (
                isinstance(part[0], Distribution) and isinstance(part[1], int) and part[1] > 0
            ):
                raise ValueError(
                    "Product: parts must be pairs of a distribution and a positive number of dimensions, "
                    f"got {part}"
                )
        if not self.parts:
            raise ValueError("Product: parts must hold at least one pair, got none")
        check_count("Product: steps", self.steps)

    @property
    def box(self) -> Box | None:  # type: ignore[override]
        return _Boxes(self) if any(distribution.box for distribution, _ in self.parts) else None

    def init(self, x0: Tensor) -> ProductState:
        size = self.steps * sum(self._sizes)
        if x0.shape[-1] != size:
            raise ValueError(f"Product: x0 must have the {size} numbers of its parts, got {x0.shape[-1]}")
        return self._state(lambda part, x: part.init(x), self._split(x0))

    def sample(self, phi: ProductState, noise: Tensor) -> Tensor:
        return self._joined(self._each(lambda part, *a: part.sample(*a), phi.parts, self._split(noise)))

    def fit(self, phi: ProductState, u: Tensor, w: Tensor, sigma_min: float) -> ProductState:
        return self._state(lambda part, old, u: part.fit(old, u, w, sigma_min), phi.parts, self._split(u))

    def decode(self, u: Tensor) -> Tensor:
        return self._joined(self._each(lambda part, u: part.decode(u), self._split(u)))

    def encode(self, x: Tensor) -> Tensor:
        return self._joined(self._each(lambda part, x: part.encode(x), self._split(x)))

    def answer(self, phi: ProductState) -> Tensor:
        return self._joined(self._each(lambda part, phi: part.answer(phi), phi.parts))

    def blend(self, new: ProductState, old: ProductState, share: float | Tensor) -> ProductState:
        return self._state(lambda part, new, old: part.blend(new, old, share), new.parts, old.parts)

    def widen(self, phi: ProductState, factor: float | Tensor) -> ProductState:
        return self._state(lambda part, phi: part.widen(phi, factor), phi.parts)

    def recentre(self, phi: ProductState, mean: Tensor) -> ProductState:
        return self._state(lambda part, phi, mean: part.recentre(phi, mean), phi.parts, self._split(mean))

    def within(self, box: Box, steps: int = 1) -> Self:
        single = replace(self, steps=1)
        lows, highs = (
            single._split(bound) if isinstance(bound, Tensor) and bound.ndim else [bound] * len(self.parts)
            for bound in (box.low, box.high)
        )
        parts = [
            (distribution.within(Box(low, high), steps), size)
            for (distribution, size), low, high in zip(self.parts, lows, highs, strict=True)
        ]
        return replace(self, parts=parts, steps=steps)

    def paced(self, n_iters: int) -> Self:
        return replace(self, parts=[(distribution.paced(n_iters), size) for distribution, size in self.parts])

    @property
    def _sizes(self) -> list[int]:
        return [size for _, size in self.parts]

    def _each(self, function: Callable[..., Any], *arguments: Sequence[Any]) -> list[Any]:
        distributions = [distribution for distribution, _ in self.parts]
        return [function(*both) for both in zip(distributions, *arguments, strict=True)]

    def _state(self, function: Callable[..., Any], *arguments: Sequence[Any]) -> ProductState:
        parts = self._each(function, *arguments)
        mean, sigma = (self._joined([getattr(phi, name) for phi in parts]) for name in ("mean", "sigma"))
        return ProductState(mean, sigma, tuple(parts))

    def _split(self, x: Tensor) -> list[Tensor]:
        """The part of each distribution in x (..., n)."""
        parts = x.unflatten(-1, (self.steps, -1)).split(self._sizes, dim=-1)
        return [part.flatten(-2) for part in parts]

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.unflatten(-1, (self.steps, -1)) for part in parts], dim=-1).flatten(-2)


class _Boxes(Box):
    """The bounds of every part, infinite if it has none."""

    _product: Product
    _boxes: list[Box]

    def __init__(self, product: Product) -> None:
        boxes = [distribution.box or Box(-math.inf, math.inf) for distribution, _ in product.parts]
        low: Any = tuple(box.low for box in boxes)
        high: Any = tuple(box.high for box in boxes)
        super().__init__(low, high)
        self.__dict__.update(_product=product, _boxes=boxes)

    def contains(self, x: Tensor) -> Tensor:
        return torch.stack(self._each(lambda box, x: box.contains(x), x)).all(0)

    def clamp(self, x: Tensor) -> Tensor:
        return self._product._joined(self._each(lambda box, x: box.clamp(x), x))

    def hold(self, x: Tensor) -> Tensor:
        return self._product._joined(self._each(lambda box, x: box.hold(x), x))

    def pinned(self, x: Tensor, slope: Tensor) -> Tensor:
        return self._product._joined(self._each(lambda box, *both: box.pinned(*both), x, slope))

    def _each(self, function: Callable[..., Tensor], *arguments: Tensor) -> list[Tensor]:
        return [
            function(*part) for part in zip(self._boxes, *map(self._product._split, arguments), strict=True)
        ]

"""Settings of a solver that are learned: parameters, and modules that keep them in range."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class Positive(nn.Module):
    """One or more numbers that stay positive while they are learned: the softplus of a parameter.

    Pass it to a solver in place of a number: `DCEM(tau=Positive(0.5))`. It becomes a parameter of a layer
    with that solver.

    >>> tau = Positive(0.5)
    >>> tau()
    tensor(0.5000, grad_fn=<...>)
    """

    def __init__(self, value: float | Tensor) -> None:
        super().__init__()
        start = torch.as_tensor(value, dtype=torch.get_default_dtype()).detach().clone()
        if not (start > 0).all():
            raise ValueError(f"Positive: value must be positive, got {value}")
        self._shape = start.shape
        raw = start + torch.log(-torch.expm1(-start))
        self.raw = nn.Parameter(raw if raw.ndim else raw.unsqueeze(0))  # a scalar could not be sharded

    def forward(self) -> Tensor:
        return nn.functional.softplus(self.raw).reshape(self._shape)


class Fraction(nn.Module):
    """One or more numbers that stay between 0 and 1 while they are learned: the sigmoid of a parameter.

    >>> Fraction(0.25)()
    tensor(0.2500, grad_fn=<...>)
    """

    def __init__(self, value: float | Tensor) -> None:
        super().__init__()
        start = torch.as_tensor(value, dtype=torch.get_default_dtype()).detach().clone()
        if not ((start > 0) & (start < 1)).all():
            raise ValueError(f"Fraction: value must lie between 0 and 1, got {value}")
        self._shape = start.shape
        self.raw = nn.Parameter(torch.atleast_1d(start.logit()))  # a scalar could not be sharded

    def forward(self) -> Tensor:
        return self.raw.sigmoid().reshape(self._shape)


class PerIteration(nn.Module):
    """A learned setting with one value per iteration (a plain tensor would be one value per row).

    Args:
        values: (T, ...), to become a parameter; or a module that returns such a tensor.

    >>> tau = PerIteration(Positive(torch.full((5,), 0.5)))
    >>> layer = Argmin(lambda x, y: (y - x).square().sum(-1), DCEM(n_iters=5, tau=tau), n=2)
    >>> len(tau()), [name for name, _ in layer.named_parameters()]
    (5, ['solver_tau.values.raw'])
    """

    def __init__(self, values: Tensor | nn.Module) -> None:
        super().__init__()
        made = isinstance(values, nn.Module | nn.Parameter)
        self.values: nn.Module | Tensor = values if made else nn.Parameter(values.detach().clone())  # type: ignore[operator]

    def forward(self) -> tuple[Tensor, ...]:
        return (self.values() if isinstance(self.values, nn.Module) else self.values).unbind(0)


def resolved(settings: Any) -> Any:
    """The current settings: modules are called, and learned values are checked again, since they change."""
    if type(settings) is tuple:  # such as the parts of a product
        parts = tuple(map(resolved, settings))
        return parts if any(new is not old for new, old in zip(parts, settings, strict=True)) else settings
    if not dataclasses.is_dataclass(settings) or isinstance(settings, type):
        return settings
    changes: dict[str, Any] = {}
    moved = False
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, nn.Module):
            changes[field.name] = value()
        elif isinstance(value, Tensor):
            moved |= value.requires_grad
        elif field.init:
            inner = resolved(value)
            if inner is not value:
                changes[field.name] = inner
    return dataclasses.replace(settings, **changes) if changes or moved else settings


def register_settings(layer: nn.Module, solver: Any) -> None:
    """Register learned settings (parameters, modules) of a solver and its distribution with the layer."""
    for name, value in learned(solver):
        if isinstance(value, nn.Module):
            layer.add_module(f"solver_{name}", value)
        elif isinstance(value, nn.Parameter):
            layer.register_parameter(f"solver_{name}", value)
        elif value.grad_fn is not None:
            raise ValueError(
                f"{type(layer).__name__}: the solver's {name} must be a Parameter or dcem.Positive to be "
                "learned, since a tensor that some operation made has a graph for one backward pass alone"
            )


def learned(settings: Any) -> Iterator[tuple[str, Any]]:
    """Every setting that requires gradients, with its name."""
    if type(settings) is tuple:
        for i, part in enumerate(settings):
            yield from ((f"{i}_{name}", value) for name, value in learned(part))
    if not dataclasses.is_dataclass(settings):
        return
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, nn.Module) or (isinstance(value, Tensor) and value.requires_grad):
            yield field.name, value
        elif field.init:
            yield from learned(value)

"""Checks of values: where reading them is free, whether they are finite, and whether settings are equal."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn


def can_look(x: Tensor) -> bool:
    """Is reading a value free here? Not on an accelerator, which would synchronise, nor in a transform."""
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    return x.is_cpu


def is_transformed() -> bool:
    """Is this call being compiled, or inside `torch.func`? Our own autograd functions do not work there."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def all_finite(x: Tensor) -> bool:
    """One cheap check: False when an entry is NaN or infinite (or, harmlessly, when only their sum is)."""
    return math.isfinite(x.sum().item())


def holds(value: float | Tensor | nn.Module, rule: Any) -> bool:
    """Do all numbers of a setting satisfy `rule`? Those that cannot be read are assumed to."""
    if isinstance(value, nn.Module) or (isinstance(value, Tensor) and not can_look(value)):
        return True
    if isinstance(value, int | float):  # the common case, in every solve: no tensor is made for it
        return bool(rule(value))
    return bool(rule(torch.as_tensor(value)).all())


def same(a: Any, b: Any) -> bool:
    """Equality of settings: dataclasses field by field, tensors by value."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.device == b.device and bool((a == b).all())
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def check(name: str, value: float | Tensor | nn.Module, words: str, rule: Any) -> None:
    """Raise ValueError unless all numbers of a setting satisfy `rule`, which the words say."""
    if not holds(value, rule):
        got = value[~rule(value)].flatten()[0].item() if isinstance(value, Tensor) else value
        raise ValueError(f"{name} must {words}, got {got}")


def check_tau(name: str, tau: float | Tensor) -> None:
    """A temperature that is learned must not be 0: the hard top-k passes no gradient."""
    if isinstance(tau, Tensor):
        check(f"{name}: tau", tau, "be > 0 where it is a tensor", lambda x: x > 0)
    else:
        check(f"{name}: tau", tau, "be >= 0", lambda x: x >= 0)


def over_rows(
    value: float | Tensor, name: str, like: Tensor, dtype: torch.dtype | None = None
) -> float | Tensor:
    """A number, or a tensor over the rows (*B,), shaped to broadcast against `like` (*B, N)."""
    if not isinstance(value, Tensor):
        return value
    rows = like.shape[:-1]
    pairs = zip(reversed(value.shape), reversed(rows), strict=False)
    if value.ndim > len(rows) or any(a not in (1, b) for a, b in pairs):
        raise ValueError(f"{name} must broadcast over the rows {tuple(rows)}, got shape {tuple(value.shape)}")
    value = value.to(like.device, dtype or like.dtype)
    return value.unsqueeze(-1) if value.ndim else value


def check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")


def check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be callable, got {type(value).__name__}")


class Settings:
    """A record of settings, equal to another where these are; hashed by identity, as tensors are."""

    def __eq__(self, other: object) -> bool:
        return same(self, other)

    __hash__ = object.__hash__


def name_row(wrong: Tensor) -> str:
    """' in row (2, 1)' for the first True of `wrong` (*B,), nothing where there is only one row."""
    if wrong.ndim == 0:
        return ""
    row = tuple(wrong.nonzero()[0].tolist())
    return f" in row {row[0] if len(row) == 1 else row}"

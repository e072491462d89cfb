"""The bounds of the actions, and the dimension of an action."""

from typing import Any

import torch
from torch import Tensor

from dcem.distributions.box import Bound, as_bound


def action_bounds(low: Bound | None, high: Bound | None, decoder: Any) -> tuple[Any, Any]:
    """The bounds that are given, else a decoder's, else -1 and 1; a decoder's must lie inside."""
    chosen: list[Any] = []
    for name, given, sign in (("low", low, -1.0), ("high", high, 1.0)):
        own = getattr(decoder, name, None)
        if given is None:
            chosen.append(sign if own is None else own.detach().clone())
            continue
        chosen.append(as_bound(given))
        if own is not None and (sign * own > sign * torch.as_tensor(chosen[-1])).any():
            raise ValueError(
                f"MPC: {name} must be left out or hold the decoder's actions, whose {name} is "
                f"{own.tolist()}, got {given}"
            )
    return chosen[0], chosen[1]


def as_vector(bound: float | Tensor, size: int, name: str) -> Tensor:
    vector = torch.as_tensor(bound, dtype=torch.get_default_dtype())
    if vector.shape not in ((), (1,), (size,)):
        raise ValueError(f"MPC: {name} must be a number or have shape ({size},), got {tuple(vector.shape)}")
    return vector.expand(size).clone()


def action_size(
    model: Any, low: float | Tensor, high: float | Tensor, decoder: Any, given: int | None
) -> int:
    """m, from whichever arguments define it."""
    told: list[int | None] = [given, getattr(decoder, "action_dim", None), getattr(model, "action_dim", None)]
    told += [len(b) for b in (low, high) if isinstance(b, Tensor) and b.ndim == 1]
    dims = {d for d in told if d is not None}
    if len(dims) != 1:
        raise ValueError(
            "MPC: action_dim must be told, by the argument, the model, the decoder or tensors low and high, "
            f"got {sorted(dims) or 'nothing'}"
        )
    return dims.pop()

"""A gradient step: Adam on clipped gradients, and the moving average of what it leads to."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

try:
    from dcem_lab.training import descent_triton
except ImportError:  # Triton is not installed
    descent_triton = None  # type: ignore[assignment]


def descend(
    loss: Tensor, parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer, clip: float
) -> Tensor:
    """A gradient step, the gradient scaled down to norm `clip`; returns its norm before that."""
    # Do not use backward(): its accumulation nodes are tied to the stream that first used a parameter.
    return _follow(torch.autograd.grad(loss, parameters), parameters, optimizer, clip)


def _follow(
    gradients: Sequence[Tensor], parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer, clip: float
) -> Tensor:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.contiguous()  # as Adam's kernel wants it: those of a cat are views
    norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()
    return norm


class Descent(Protocol):
    """Steps along gradients, and what it remembers of them, in the format of `torch.optim.Adam`."""

    def step(self, gradients: Sequence[Tensor]) -> Tensor:
        """Change the parameters, and their averages; returns the gradient's norm, until the next step."""

    def state_dict(self) -> dict[int, Any]: ...

    def load_state_dict(self, state: Mapping[int, Any]) -> None: ...


def descent(
    parameters: Sequence[Tensor], averages: Sequence[Tensor], config: Any, eps: float, shared: bool = False
) -> Descent:
    """The fastest for the device of the parameters, which it may move in memory unless they are shared.

    The config has lr, clip and average, as for `Fit`.
    """
    fused = descent_triton is not None and not shared and descent_triton.fits(parameters)
    return (descent_triton.Fused if fused else _Plain)(parameters, averages, config, eps)


class _Plain:
    def __init__(
        self, parameters: Sequence[Tensor], averages: Sequence[Tensor], config: Any, eps: float
    ) -> None:
        self._parameters, self._averages = list(parameters), list(averages)
        self._clip, self._decay = config.clip, config.average
        # Fused: one launch, and on a CPU one pass over the weights, instead of a dozen.
        on_cuda = parameters[0].is_cuda
        self._adam = torch.optim.Adam(parameters, config.lr, eps=eps, capturable=on_cuda, fused=True)

    def step(self, gradients: Sequence[Tensor]) -> Tensor:
        norm = _follow(gradients, self._parameters, self._adam, self._clip)
        torch._foreach_lerp_(self._averages, self._parameters, 1 - self._decay)
        return norm

    def state_dict(self) -> dict[int, Any]:
        return self._adam.state_dict()["state"]

    def load_state_dict(self, state: Mapping[int, Any]) -> None:
        groups = self._adam.state_dict()["param_groups"]
        self._adam.load_state_dict({"state": dict(state), "param_groups": groups})

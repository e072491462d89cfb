"""Operations of a solve on devices where each is a launch: no more than are needed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dcem.distributions.moments import weighted_moments
from dcem.topk.standardize import resolved

ALLOCATIONS = {"detach", "empty", "empty_like", "empty_strided", "new_empty"}


class Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not func.is_view and name not in ALLOCATIONS:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def launches(run: Callable[[], object]) -> int:
    with Counter() as counter:
        run()
    return len(counter.names)


def meta(*shape: int) -> Tensor:
    """Its values cannot be read, as on an accelerator."""
    return torch.empty(shape, device="meta", requires_grad=True)


def test_whether_rows_are_resolved():
    values = meta(4, 100).detach()
    assert launches(lambda: resolved(values)) <= 8


def test_moments():
    u, w = meta(4, 100, 20), meta(4, 100)
    found: list[Tensor] = []
    assert launches(lambda: found.extend(weighted_moments(u, w, 1e-8, 1e-6))) <= 14
    grads = [torch.empty_like(x) for x in found]
    assert launches(lambda: torch.autograd.grad(found, (u, w), grads)) <= 11

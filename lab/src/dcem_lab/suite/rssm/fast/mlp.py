"""Networks of critics and actors through fused kernels, with gradients: Triton's on CUDA, C++ on the CPU."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from dcem._graph import by_formula, partials
from dcem_lab.suite.rssm.fast import mlp_native

try:
    from dcem_lab.suite.rssm.fast import mlp_triton
except ImportError:  # Triton is not installed
    mlp_triton = None  # type: ignore[assignment]


def kernels_for(x: Tensor, parameters: Sequence[Tensor]) -> ModuleType | None:
    """The kernels for x (M, N, X) and weight, bias, weight, bias … of three layers, if there are any."""
    if len(parameters) != 6 or x.numel() == 0 or torch.is_autocast_enabled(x.device.type):
        return None
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return None  # our own autograd functions do not work there
    (M, X, W), Y = parameters[0].shape, parameters[4].shape[-1]
    shapes = [(M, X, W), (M, W), (M, W, W), (M, W), (M, W, Y), (M, Y)]
    if [tuple(p.shape) for p in parameters] != shapes or x.ndim != 3 or (len(x), x.shape[-1]) != (M, X):
        return None
    if not all(t.dtype == torch.float32 and t.device == x.device for t in (x, *parameters)):
        return None
    for kernels in (mlp_triton, mlp_native):
        if kernels is not None and kernels.fits(x, parameters):
            return kernels
    return None


def normed_network(
    kernels: Any, x: Tensor, parameters: Sequence[Tensor], plain: Callable[..., Tensor]
) -> Tensor:
    """The network's outputs (M, N, Y). `plain(x, *parameters)` is the same in torch's operations."""
    return _Normed.apply(kernels, kernels.precision(), plain, x, *parameters)


class _Normed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: Any, precision: str, plain: Callable[..., Tensor], x: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.kernels, ctx.precision, ctx.plain = kernels, precision, plain
        out, kept, rates = kernels.forward(x, parameters, precision)
        ctx.save_for_backward(x, *parameters, kept, rates)
        return out

    @staticmethod
    def backward(ctx: Any, above: Tensor | None) -> tuple[Tensor | None, ...]:
        if above is None:
            return (None,) * 10
        *inputs, kept, rates = ctx.saved_tensors
        needed = ctx.needs_input_grad[3:]
        if by_formula(above):
            return None, None, None, *partials(ctx.plain, inputs, needed, above)
        x, *parameters = inputs
        found = ctx.kernels.backward(
            above, x, parameters, kept, rates, needed[0], any(needed[1:]), ctx.precision
        )
        return None, None, None, *found

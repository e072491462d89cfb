"""Compile the fused kernels to machine code for a GPU of this compute capability, which need not be here.

    python tests/kernels/compile_all.py 90

The interpreter accepts more than the compiler does: types that change inside a loop, for example.
"""

import itertools
import sys

import torch
from torch import Tensor
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dcem.distributions import samples_triton
from dcem.solvers import refit_triton
from dcem.topk.lml import flags

TYPES = {torch.float32: "*fp32", torch.float64: "*fp64"}
launches = []


class Recorder:
    """In place of a kernel: keeps what it is launched with."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *args, **kwargs: launches.append((self.kernel, args, kwargs))


def build(capability: int, kernel, args, kwargs) -> int:
    """The size of the machine code for a launch, in bytes."""
    options = {"num_warps": kwargs.pop("num_warps", 4)}
    given = dict(zip((p.name for p in kernel.params), args, strict=False)) | kwargs
    signature = {p.name: type_of(p, given[p.name]) for p in kernel.params}
    constants = {(i,): given[p.name] for i, p in enumerate(kernel.params) if p.is_constexpr}
    source = ASTSource(kernel, signature, constants)
    return len(compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["cubin"])


def type_of(parameter, value) -> str:
    if parameter.is_constexpr:
        return "constexpr"
    if isinstance(value, Tensor):
        return TYPES[value.dtype]
    assert isinstance(value, int) or parameter.annotation_type == "fp64", "numbers must keep all digits"
    return parameter.annotation_type or "i32"


def launch_all() -> None:
    for module in (refit_triton, samples_triton):
        module._forward_kernel = Recorder(module._forward_kernel)
        module._backward_kernel = Recorder(module._backward_kernel)
    for dtype, last, (scaling, N, n) in itertools.product(
        TYPES, [True, False], [(True, 100, 20), ("half", 1000, 7), (False, 2, 1)]
    ):
        values, u, m = (torch.zeros(2, *shape, dtype=dtype) for shape in ((N,), (N, n), (n,)))
        given = (values, u, m, m) if last else (values, u, None, None)
        how = 1.0, 0.1, 0.2 * last, flags(scaling, True, True, True), 0.5, 1e-9, 1e-9
        weights, mean, _, keep = refit_triton.forward(*given, m if last else None, *how)
        refit_triton.backward(*given, weights, mean, keep, weights if last else None, m, m, *how)
        bounds = (-1.0, torch.zeros(n)) if last else None
        samples_triton.forward(m, m, u, bounds, last)
        samples_triton.backward(u, u if last else None, m, m, u, bounds)


if __name__ == "__main__":
    launch_all()
    for launch in launches:
        print(launch[0].__name__, build(int(sys.argv[1]), *launch))

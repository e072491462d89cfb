"""Compile the kernels to machine code for a GPU of this compute capability, which need not be here.

    python tests/kernels/compile_all.py 90

The interpreter accepts more than the compiler does: types that change inside a loop, for example. Prints a
line for each: module, type, bytes of machine code, and bytes of a thread that its registers do not hold.
"""

import itertools
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from triton import compile, knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dcem.distributions import samples_triton
from dcem.solvers import refit_triton
from dcem.topk import lml_triton
from dcem.topk.lml import flags

TYPES = {torch.float32: "*fp32", torch.float64: "*fp64"}
launches = []


class Recorder:
    """In place of a kernel: keeps what it is launched with."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *args, **kwargs: launches.append((self.kernel, args, kwargs))


def build(capability: int, kernel, args, kwargs) -> str:
    """A line about the machine code for a launch."""
    options = {name: kwargs.pop(name) for name in ("num_warps", "maxnreg") if name in kwargs}
    given = dict(zip((p.name for p in kernel.params), args, strict=False)) | kwargs
    number = next(TYPES[v.dtype] for v in given.values() if isinstance(v, Tensor))
    signature = {p.name: type_of(p, given[p.name], number) for p in kernel.params}
    constants = {(i,): given[p.name] for i, p in enumerate(kernel.params) if p.is_constexpr}
    source = ASTSource(kernel, signature, constants)
    code = compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["cubin"]
    return f"{kernel.module} {number} {len(code)} {spilled(code)}"


def type_of(parameter, value, number: str) -> str:
    if parameter.is_constexpr:
        return "constexpr"
    if isinstance(value, Tensor):
        return TYPES[value.dtype]
    if isinstance(value, int):
        return parameter.annotation_type or "i32"
    digits = parameter.annotation_type or "fp32"
    assert value == 0 or number == "*fp32" or digits == "fp64", "numbers must keep all digits"
    return digits


def spilled(code: bytes) -> int:
    with TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(code)
        command = knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(file)
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum(int(count) for count in re.findall(r"(?:STACK|LOCAL):(\d+)", said))


def launch_all() -> None:
    for module in (refit_triton, samples_triton, lml_triton):
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
    for dtype, standardize, n in itertools.product(TYPES, [True, False], [100, 4096]):
        x = torch.zeros(2, n, dtype=dtype)
        y, *rows = lml_triton.forward(x, 10, 0.1 if standardize else x[:, :1], standardize, standardize)
        lml_triton.backward(y, x, *rows, standardize, False)


if __name__ == "__main__":
    launch_all()
    for launch in launches:
        print(build(int(sys.argv[1]), *launch))

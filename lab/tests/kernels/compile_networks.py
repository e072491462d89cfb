"""Compile the kernels of critics and actors for a GPU of this compute capability, which need not be here.

    python lab/tests/kernels/compile_networks.py 90

Prints for each its name, the registers of a thread, and the bytes that did not fit into them.
"""

import re
import subprocess
import sys
import tempfile

import torch
import triton
from torch import Tensor
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dcem_lab.suite.rssm.fast import mlp_triton

KERNELS = ("forward_kernel", "backward_kernel", "weights_kernel")
CASES = [  # members, rows, inputs, width, outputs and precision
    (5, 512, 80, 256, 101, "tf32"),
    (5, 512, 23, 256, 1, "tf32"),
    (1, 512, 67, 256, 21, "tf32"),
    (5, 256, 24, 128, 101, "tf32"),
    (5, 256, 20, 64, 1, "tf32"),
    (5, 512, 80, 256, 1, "ieee"),
]
launches = []


class Recorder:
    """In place of a kernel: keeps what it is launched with."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *args, **kwargs: launches.append((self.kernel, args, kwargs))


def launch_all() -> None:
    for name in KERNELS:
        setattr(mlp_triton, name, Recorder(getattr(mlp_triton, name)))
    for M, N, X, W, Y, precision in CASES:
        shapes = (M, X, W), (M, W), (M, W, W), (M, W), (M, W, Y), (M, Y)
        parameters = [torch.zeros(shape) for shape in shapes]
        x = torch.zeros(M, N, X)
        out, *kept = mlp_triton.forward(x, parameters, precision)
        mlp_triton.backward(out, x, parameters, *kept, True, True, precision)
    mlp_triton.backward(out, x, parameters, *kept, False, False, precision)


def build(capability: int, kernel, args, kwargs) -> bytes:
    """The machine code of a launch."""
    options = {"num_warps": kwargs.pop("num_warps", 4)}
    given = dict(zip((p.name for p in kernel.params), args, strict=False)) | kwargs
    signature, constants, aligned = {}, {}, {}
    for i, p in enumerate(kernel.params):
        value = given[p.name]
        if p.is_constexpr or value is None:
            signature[p.name], constants[(i,)] = "constexpr", value
        elif isinstance(value, Tensor):
            signature[p.name], aligned[(i,)] = "*fp32", [["tt.divisibility", 16]]
        else:
            signature[p.name] = "i32"
    source = ASTSource(kernel, signature, constants, aligned)
    return compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["cubin"]


def usage(code: bytes) -> tuple[str, ...]:
    """Registers and bytes on the stack."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.search(r"REG:(\d+) STACK:(\d+)", told).groups()


if __name__ == "__main__":
    launch_all()
    for kernel, args, kwargs in launches:
        print(kernel.__name__, *usage(build(int(sys.argv[1]), kernel, args, kwargs)))

"""Compile the kernels of critics and actors, and of gradient steps, for a GPU that need not be here.

    python lab/tests/kernels/compile_networks.py 90
    python lab/tests/kernels/compile_networks.py 90 sums

The latter are those for gradients of other layers.
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

from dcem_lab.suite.agents import Value, ValueConfig, value_triton
from dcem_lab.suite.rssm.fast import mlp_triton, sums_triton
from dcem_lab.training import descent_triton

KERNELS = {
    mlp_triton: ("forward_kernel", "backward_kernel", "weights_kernel"),
    value_triton: ("act_kernel", "judge_kernel", "actor_kernel"),
    descent_triton: ("square_kernel", "adam_kernel"),
    sums_triton: ("parts_kernel", "whole_kernel"),
}
TYPES = {torch.float16: "*fp16", torch.float32: "*fp32"}
CASES = [  # members, rows, inputs, width, outputs and precision
    (5, 512, 80, 256, 101, "tf32"),
    (5, 512, 23, 256, 1, "tf32"),
    (1, 512, 67, 256, 21, "tf32"),
    (5, 256, 24, 128, 101, "tf32"),
    (5, 256, 20, 64, 1, "tf32"),
    (5, 512, 80, 256, 1, "ieee"),
]
SUMS = [(200, 600), (296, 200), (200, 1)]  # inputs and outputs
launches = []


class Recorder:
    """In place of a kernel: keeps what it is launched with."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *args, **kwargs: launches.append((self.kernel, args, kwargs))


def record() -> None:
    for module, names in KERNELS.items():
        for name in names:
            setattr(module, name, Recorder(getattr(module, name)))


def launch_all() -> None:
    for M, N, X, W, Y, precision in CASES:
        shapes = (M, X, W), (M, W), (M, W, W), (M, W), (M, W, Y), (M, Y)
        parameters = [torch.zeros(shape) for shape in shapes]
        x = torch.zeros(M, N, X)
        out, *kept = mlp_triton.forward(x, parameters, precision)
        mlp_triton.backward(out, x, parameters, *kept, True, True, precision)
    mlp_triton.backward(out, x, parameters, *kept, False, False, precision)

    networks = len(launches)
    value, average = Value(78, 12), Value(78, 12)  # the quadruped's
    for bound in (200.0, None):
        value_triton.gradients(value, average, torch.zeros(256, 2 * 78 + 2 * 12 + 4), bound, 1e-3)
    weights, averages = list(value.parameters()), list(average.parameters())
    descent_triton.Fused(weights, averages, ValueConfig(), 1e-8).step(weights)
    between = [one for one in launches[networks:] if one[0].__name__ not in KERNELS[mlp_triton]]
    launches[networks:] = between


def launch_sums() -> None:
    states = torch.zeros(3, 2560, 296, dtype=torch.float16)
    for X, Y in SUMS:
        sums_triton.layer_gradients(states[:, :, :X], states.new_zeros(3, 2560, Y), 1.0)


def build(capability: int, kernel, args, kwargs) -> bytes:
    """The machine code of a launch."""
    options = {"num_warps": kwargs.pop("num_warps", 4), "num_stages": kwargs.pop("num_stages", 3)}
    given = dict(zip((p.name for p in kernel.params), args, strict=False)) | kwargs
    signature, constants, aligned = {}, {}, {}
    for i, p in enumerate(kernel.params):
        value = given[p.name]
        if p.is_constexpr or value is None:
            signature[p.name], constants[(i,)] = "constexpr", value
        elif isinstance(value, Tensor):
            signature[p.name], aligned[(i,)] = TYPES[value.dtype], [["tt.divisibility", 16]]
        else:
            signature[p.name] = "i32" if isinstance(value, int) else "fp32"
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
    record()
    launch_sums() if "sums" in sys.argv[2:] else launch_all()
    for kernel, args, kwargs in launches:
        print(kernel.__name__, *usage(build(int(sys.argv[1]), kernel, args, kwargs)))

"""Time on the device's own clock, and what the device can do at most."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Run = Callable[[], Any]

SECONDS = 0.2  # of every measurement


def median_ms(f: Run) -> float:
    """Of one call, over as many as fit in the time, ten at least."""
    for _ in range(3):
        f()
    torch.cuda.synchronize()
    start = time.perf_counter()
    f()
    torch.cuda.synchronize()
    calls = min(max(int(SECONDS / (time.perf_counter() - start)), 10), 1000)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    for before, after in events:
        before.record()
        f()
        after.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) for before, after in events)


def as_graph(f: Run) -> Run:
    """f as a CUDA graph, with nothing around it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            f()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f()
    return graph.replay


def without_grad(f: Callable[..., Any], *inputs: Tensor) -> Run:
    """f called with these inputs, under no_grad."""

    def run() -> Any:
        with torch.no_grad():
            return f(*inputs)

    return run


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda")


@contextlib.contextmanager
def tf32(on: bool) -> Iterator[None]:
    """Matrix products of float32 on the tensor cores, or not."""
    torch.backends.cuda.matmul.allow_tf32 = on
    yield
    torch.backends.cuda.matmul.allow_tf32 = False


def ceilings() -> dict[str, float]:
    """In one second: bytes copied, operations in matrix products of three kinds, graphs of a tiny kernel."""
    source, target = draw(1 << 28), draw(1 << 28)
    ms = {"bytes": median_ms(lambda: target.copy_(source))}
    work = {"bytes": 2 * 4.0 * source.numel()}
    sizes = {"bf16": (8192, torch.bfloat16), "tf32": (8192, torch.float32), "fp32": (4096, torch.float32)}
    for unit, (n, dtype) in sizes.items():
        a, b = draw(n, n).to(dtype), draw(n, n).to(dtype)
        with tf32(unit == "tf32"):
            ms[unit], work[unit] = median_ms(lambda a=a, b=b: a @ b), 2.0 * n**3
    one = draw(1)
    ms["launches"], work["launches"] = median_ms(as_graph(lambda: one.add_(1))), 1.0
    return {name: 1e3 * work[name] / ms[name] for name in ms}

"""Many solves in one process: memory stays where it was, and every answer and gradient is finite."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from dcem import DCEM, Gaussian, minimize
from reliability.outcome import Outcome

ALLOWED = 0.01


def measure(count: int, folder: Path) -> Outcome:
    """Forward and backward, after a tenth of them as warm-up. Needs a process of its own."""
    torch.set_num_threads(1)
    solver = DCEM(n_samples=20, n_elite=4, n_iters=3, distribution=Gaussian(bounds=(-1.0, 1.0)))
    generator = torch.Generator().manual_seed(0)
    target = torch.tensor([0.3, -0.2, 0.9], requires_grad=True)
    x0 = torch.zeros(2, 3)
    failures: list[str] = []
    slowest, warm, peak = 0.0, 0, 0
    for number in range(count):
        began = time.monotonic()
        x = minimize(lambda x: (x - target).square().sum(-1), solver, x0, generator=generator).x
        (gradient,) = torch.autograd.grad(x.square().sum(), target)
        slowest = max(slowest, time.monotonic() - began) if number else 0.0
        if not (x.isfinite().all() and gradient.isfinite().all()):
            failures.append(f"solve {number}: not finite")
        if number == count // 10:
            warm = peak = resident()
        if number % 100 == 0 and warm:
            peak = max(peak, resident())
    peak = max(peak, resident())
    growth = peak / warm - 1
    if growth > ALLOWED:
        failures.append(f"resident memory grew by {growth:.2%}")
    megabytes = f"{warm >> 20} to {peak >> 20} MiB"
    return Outcome(count, failures, slowest, f"resident memory {megabytes}, {growth:+.2%}, after warm-up")


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

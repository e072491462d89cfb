"""Time, memory and correctness of one call: the part that runs inside every contender's environment.

An adapter in `peers/` ends with `serve(methods, packages)`. It then answers requests, one JSON object a line,
until its input closes. A method takes a problem and options and returns a `Job`.
"""

import ctypes
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import problems
from serving import Reply, answer_requests, versions

# Unlike any seed in problems.py: noise from a problem's own stream would contain its answer.
NOISE_SEEDS = range(1000, 1010)


@dataclass(frozen=True)
class Job:
    """One call to be measured: `forward` returns a tensor that depends on `parameters`."""

    forward: Callable[[], Tensor]
    parameters: tuple[Tensor, ...]

    def run(self, backward: bool) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        """The output and, when asked for, a random cotangent and its pullback to the parameters."""
        if not backward:
            with torch.no_grad():
                return self.forward(), None, ()
        output = self.forward()
        cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
        return output, cotangent, torch.autograd.grad(output, self.parameters, cotangent)


Method = Callable[..., Job]


def serve(methods: dict[str, Method], packages: tuple[str, ...]) -> None:
    """Answer requests for measurements of these methods."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    built: dict[str, Job] = {}

    def job(method: str, problem: Reply, options: Reply) -> Job:
        key = json.dumps([method, problem, options])
        if key not in built:
            built[key] = methods[method](problems.make(**problem), **options)
        return built[key]

    def answer(do: str, contender: Reply, **rest: Any) -> Reply:
        if do == "versions":
            return versions(("torch", *packages))
        if do == "time":
            return _time(job(**contender), **rest)
        if do == "memory":
            return _memory(job(**contender), **rest)
        if do == "judge":
            return _judge(methods, contender)
        if do == "differences":
            return _against_differences(methods, contender)
        if do == "compare":
            return _compare(job(**contender), job(**rest["reference"]))
        raise ValueError(f"do must name a measurement, not {do!r}")

    answer_requests(answer)


def _time(job: Job, backward: bool, seconds: float) -> Reply:
    """The median milliseconds of one call, over as many calls as fit into `seconds` (three at least).

    With one thread, of the process's CPU time: what else the machine does is then not in it.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    job.run(backward)
    calls: list[float] = []
    while sum(calls) < seconds or len(calls) < 3:
        start = clock()
        job.run(backward)
        calls.append(clock() - start)
    return {"ms": 1e3 * statistics.median(calls), "calls": len(calls)}


def _memory(job: Job, backward: bool) -> Reply:
    """What one warm call adds at its peak, in MB: tensors alone (exact) and the whole process (pages)."""
    job.run(backward)
    return {"process MB": process_peak(job, backward), "tensors MB": _tensor_peak(job, backward)}


def process_peak(job: Job, backward: bool) -> float | None:
    """Growth of the resident set to its high-water mark; None where the kernel cannot reset the mark."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # else freed memory is reused and the growth hidden
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    except OSError:
        return None
    before = _status("VmRSS")
    job.run(backward)
    return (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def _tensor_peak(job: Job, backward: bool) -> float:
    """The largest running sum of torch's own allocations and frees, as its profiler records them."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        job.run(backward)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = [e for e in json.loads(path.read_text())["traceEvents"] if e["name"] == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e["ts"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak / 2**20


def _judge(methods: dict[str, Method], contender: Reply) -> Reply:
    """The problem's own verdict on the answer (and on a projection's gradient), a mean over the noise."""
    problem = problems.make(**contender["problem"])
    job = methods[contender["method"]](problem, **contender["options"])
    verdicts = []
    for seed in NOISE_SEEDS:
        torch.manual_seed(seed)
        verdicts.append(problem.judge(*job.run(backward=isinstance(problem, problems.TopK))))
    return {key: statistics.mean(v[key] for v in verdicts) for key in verdicts[0]}


def _against_differences(methods: dict[str, Method], contender: Reply, step: float = 1e-5) -> Reply:
    """Relative error of a derivative along a line, in float64, against central differences; same noise."""
    problem = problems.make(**contender["problem"], dtype="float64")
    job = methods[contender["method"]](problem, **contender["options"])
    torch.manual_seed(NOISE_SEEDS[0])
    _, cotangent, gradients = job.run(backward=True)
    directions = [torch.randn_like(p) for p in job.parameters]

    def moved(by: float) -> Tensor:
        with torch.no_grad():
            for parameter, direction in zip(job.parameters, directions, strict=True):
                parameter.add_(by * direction)
        torch.manual_seed(NOISE_SEEDS[0])
        return job.run(backward=False)[0]

    difference = ((moved(step) - moved(-2 * step)) * cotangent).sum() / (2 * step)
    derivative = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    return {"gradient error, differences": problems.relative_error(derivative, difference)}


def _compare(job: Job, reference: Job) -> Reply:
    """The whole gradient against another job's with the same noise: medians over the noise, and the worst."""

    def gradient(j: Job, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return torch.cat([g.flatten().double() for g in j.run(backward=True)[2]])

    pairs = [(gradient(job, seed), gradient(reference, seed)) for seed in NOISE_SEEDS]
    errors = [problems.relative_error(found, exact) for found, exact in pairs]
    return {
        "cosine": statistics.median(torch.cosine_similarity(*pair, dim=0).item() for pair in pairs),
        "relative error": statistics.median(errors),
        "worst error": max(errors),
    }

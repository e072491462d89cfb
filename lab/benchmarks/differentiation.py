"""What it costs to differentiate a plan: time and memory of every way to do it, in latent and in full space.

    python benchmarks/differentiation.py --output benchmarks/gpu/results/differentiation.csv

Plans for 32 states by the cheetah's controllers, the gradient of the planned actions for the parts that PPO
trains. Milliseconds of one forward and backward pass, captured on a CUDA device, and the most memory beyond
what model and states take. The latent plan has 100 samples and 5 iterations, the full one 1,000 and 10.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from rows import options, origin, put

from dcem_lab.suite.agents.policy import Policy
from dcem_lab.suite.trained import load
from dcem_lab.training.devices import choose_device
from dcem_lab.training.modes import MODES, by_name

SPACES = {"latent": "cheetah-run-dcem", "full": "cheetah-run"}
KEPT = 0.2  # of the iterations that truncate differentiates, of the samples that prune does
STATES, REPEATS = 32, 10


def cases(spaces: list[str], tiny: bool) -> Iterator[tuple[dict[str, Any], Policy]]:
    """What is measured, and the policy to measure."""
    for space in spaces:
        source = load(SPACES[space])
        parts = ("decoder", "reward") if source.decoder is not None else ("reward",)
        planner = replace(source.planner, tau=1.0)
        if tiny:
            planner = replace(planner, samples=20, elites=4, iterations=2)
        dtypes = ("float16", "float32") if torch.cuda.is_available() else ("float32",)
        ways = [(mode, parts, dtypes[0]) for mode in MODES if mode != "detach"]
        ways += [("unroll", parts, dtype) for dtype in dtypes[1:]]
        ways += [(mode, (*parts, "transition"), "float32") for mode in ("unroll", "checkpoint", "prune")]
        for mode, trained, dtype in ways:
            what = {"space": space, "backward": mode, "parts": "+".join(trained), "dtype": dtype}
            how = replace(planner, dtype=dtype)
            policy = Policy(source.model, source.decoder, how, by_name(mode, KEPT, how.iterations))
            yield what, policy


def measure(policy: Policy, device: torch.device, states: int) -> dict[str, Any]:
    """Milliseconds of a pass, and on a CUDA device megabytes at its height."""
    observed = policy.model.initial(torch.randn(states, policy.model.obs_dim, device=device))
    noise = torch.randn(states, *policy.noise_shape, device=device)
    wanted = [p for p in policy.parameters() if p.requires_grad]

    def go() -> None:
        torch.autograd.grad(policy(observed, noise).square().sum(), wanted)

    if device.type != "cuda":
        return {"ms": _median(go, lambda: None), "MB": ""}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        go()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        go()
        torch.cuda.synchronize()
    megabytes = (torch.cuda.max_memory_allocated() - before) / 1e6
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        go()
    return {"ms": _median(graph.replay, torch.cuda.synchronize), "MB": megabytes}


def _median(go: Callable[[], object], wait: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS + 2):
        wait()
        start = time.perf_counter()
        go()
        wait()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[2:])


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--spaces", choices=list(SPACES), nargs="+", default=list(SPACES))
    parser.add_argument("--states", type=int, default=STATES)
    parser.add_argument("--tiny", action="store_true", help="small plans, to see that it runs")
    given = parser.parse_args()
    device = choose_device("auto")
    torch.set_float32_matmul_precision("high")
    rows = []
    for what, policy in cases(given.spaces, given.tiny):
        policy.to(device).train_only(what["parts"].split("+"))
        row = {**what, "states": given.states}
        try:
            row |= measure(policy, device, given.states)
        except torch.cuda.OutOfMemoryError:
            row |= {"ms": "out of memory", "MB": "out of memory"}
        print(*row.values(), sep="  ", flush=True)
        rows.append(row | origin(device))
        del policy
        torch.cuda.empty_cache()
    put(given.output, rows, same=("space", "backward", "parts", "dtype", "states", "device"))


if __name__ == "__main__":
    main()

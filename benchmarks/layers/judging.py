"""What is measured of a layer: the part that runs inside every contender's environment.

A module of `contenders/` ends with `serve(layers, packages)`, where `layers(problem)` gives its layers for a
problem, by label. It then answers requests, one JSON object a line, until its input closes.
"""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from energies import ENERGIES
from measure import process_peak
from serving import Reply, answer_requests, versions
from truth import Instances

BATCH = 64  # instances in a call, when answers are judged: a size that is timed as well, for compilers
FOUND = 0.01  # of the way from the start, in energy, that may be left


class Layer(Protocol):
    """An argmin layer as it is timed: θ (B, m) -> x (B, n), and dθ⟨cotangent, x⟩."""

    def run(self, theta: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]: ...


class Torch:
    """A layer that is a function of torch, differentiated by autograd.

    most: problems that it may be given at once, where more would not fit into memory.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], most: int = BATCH):
        self.function, self.most = function, most

    def run(self, theta: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        theta = theta.clone().requires_grad_()
        x = self.function(theta)
        return x.detach(), torch.autograd.grad(x, theta, cotangent)[0]


def serve(layers: Callable[[str], dict[str, Layer]], packages: tuple[str, ...]) -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.set_default_dtype(torch.float64)
    known: dict[str, dict[str, Layer]] = {}

    def answer(do: str, contender: None = None, **request: Any) -> Reply:
        if do == "versions":
            return versions(("torch", *packages))
        name = request["problem"]
        if name not in known:
            known[name] = layers(name)
        if do == "labels":
            return {"labels": list(known[name])}
        given = Instances(**torch.load(Path(request["file"]), weights_only=True))
        torch.manual_seed(0)
        layer = known[name][request["label"]]
        if do == "judge":
            return judge(layer, name, given, request["seconds"])
        if request["batch"] > getattr(layer, "most", BATCH):
            raise MemoryError("too many problems at once")
        given = given.part(slice(request["batch"]))
        if do == "time":
            return {"ms": milliseconds(layer, given, request["seconds"])}
        return {"MB": process_peak(_Call(layer, given), backward=True)}

    answer_requests(answer)


class _Call:
    """A call that `measure` can run."""

    def __init__(self, layer: Layer, given: Instances):
        self.layer, self.given = layer, given

    def run(self, backward: bool) -> None:
        self.layer.run(self.given.theta, self.given.cotangent)


def milliseconds(layer: Layer, given: Instances, seconds: float) -> float:
    """The median CPU time of the process for one call, over as many as fit into `seconds` (one at least)."""
    calls: list[float] = []
    while sum(calls) < seconds or not calls:
        start = time.process_time()
        layer.run(given.theta, given.cotangent)
        calls.append(time.process_time() - start)
    return 1e3 * statistics.median(calls)


def judge(layer: Layer, name: str, given: Instances, seconds: float) -> Reply:
    """Answers and gradients of all instances, or of those that fit into CPU `seconds`, against the truth.

    Compilers have had their time before. All calls have one size, so that they need no more of it: the last
    one begins earlier, and what it repeats is dropped.
    """
    count, size = len(given.theta), getattr(layer, "most", BATCH)
    errors: list[str] = []
    answers, gradients = [], []
    _attempt(layer, given.part(slice(size)), [])
    torch.manual_seed(0)
    start = time.process_time()
    for at in range(0, count, size):
        first = max(0, min(at, count - size))
        x, gradient = _attempt(layer, given.part(slice(first, first + size)), errors)
        answers.append(x[at - first :])
        gradients.append(gradient[at - first :])
        if time.process_time() - start > seconds:
            break
    x, gradient = torch.cat(answers), torch.cat(gradients)
    return scores(name, given.part(slice(len(x))), x, gradient) | {"errors": "; ".join(sorted(set(errors)))}


def _attempt(layer: Layer, given: Instances, errors: list[str]) -> tuple[Tensor, Tensor]:
    """All instances in one call; where that raises, one by one, and NaN where one raises alone."""
    try:
        return layer.run(given.theta, given.cotangent)
    except Exception as error:
        if len(given.theta) == 1:
            errors.append(type(error).__name__)
            return torch.full_like(given.x, torch.nan), torch.full_like(given.theta, torch.nan)
    rows = [_attempt(layer, given.part(slice(i, i + 1)), errors) for i in range(len(given.theta))]
    return torch.cat([x for x, _ in rows]), torch.cat([gradient for _, gradient in rows])


def scores(name: str, given: Instances, x: Tensor, gradient: Tensor) -> Reply:
    """Medians over the instances that did not fail, and how many did."""
    fine = x.isfinite().all(-1) & gradient.isfinite().all(-1)
    reply = {"instances": len(x), "failures": int((~fine).sum())}
    if not fine.any():
        return reply
    left = excess(name, given, x)[fine]
    cosine = torch.cosine_similarity(gradient, given.gradient, dim=-1)[fine]
    error = ((gradient - given.gradient).norm(dim=-1) / given.gradient.norm(dim=-1))[fine]
    return reply | {
        "cosine": cosine.median().item(),
        "cosine, lowest tenth": cosine.quantile(0.1).item(),
        "relative error": error.median().item(),
        "relative error, highest tenth": error.quantile(0.9).item(),
        "excess": left.median().item(),
        "found": (left < FOUND).double().mean().item(),
    }


def excess(name: str, given: Instances, x: Tensor) -> Tensor:
    """(E(x) − E(argmin)) / (E(start) − E(argmin)): 0 at the argmin, 1 where the search began.

    For the projection, whose energy means nothing off the set: squared distances, from the set's centre.
    """
    if name == "projection":
        start = torch.full_like(x, 1 / x.shape[-1])
        return (x - given.x).square().sum(-1) / (start - given.x).square().sum(-1)
    energy = ENERGIES[name](torch)
    lowest, found, begun = (
        energy(point.unsqueeze(-2), given.theta).squeeze(-1) for point in (given.x, x, torch.zeros_like(x))
    )
    return (found - lowest) / (begun - lowest)

"""difftopk: its bitonic network, with the Cauchy distribution, and its SoftSort.

Each relaxes a permutation; the weights of the k largest are the sum of its k rows for them.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache

import torch
from torch import Tensor

import problems
from measure import Job, serve
from operators import matched

with redirect_stdout(sys.stderr):  # it says what else could be installed, where replies are awaited
    from difftopk import DiffTopkNet, SoftSort


def selection(problem: problems.Selection, operator: str) -> Job:
    choose = {"network": network, "SoftSort": softsort}[operator]
    temperature = matched(choose, problem.x, problem.k, problem.ess)
    return Job(lambda: choose(problem.x, problem.k, temperature), problem.parameters)


def network(x: Tensor, k: int, tau: float) -> Tensor:
    net = _network(x.shape[-1], k, x.dtype, x.device)
    net.steepness = 1 / tau
    with _default(x.dtype):  # it makes an identity matrix of its own
        return net(x)[1].sum(-1)


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@cache
def _network(n: int, k: int, dtype: torch.dtype, device: torch.device) -> DiffTopkNet:
    net = DiffTopkNet("bitonic", size=n, k=k)
    net.sorting_network = [[part.to(device, dtype) for part in layer] for layer in net.sorting_network]
    return net


def softsort(x: Tensor, k: int, tau: float) -> Tensor:
    return SoftSort(tau=tau)(x)[..., :k, :].sum(-2)


if __name__ == "__main__":
    serve({"selection": selection}, packages=("difftopk", "diffsort"))

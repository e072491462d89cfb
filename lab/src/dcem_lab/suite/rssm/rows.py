"""Where the rows of open-loop rollouts lie: those of distance 1, then those of distance 2, and so on.

A chunk's end cuts rollouts short, so rows are ordered by start: those that still have a target at distance d
are a prefix of those at d − 1. Means and targets of all rows take one operation each, not one per distance:
on a GPU, their cost is in the launches.
"""

from functools import cache
from itertools import accumulate

import torch
from torch import Tensor


def blocks(length: int, chunks: int, distance: int) -> list[slice]:
    """Where the rows of distance 1 … D lie: (L − d + 1) · B rows each.

    >>> blocks(length=3, chunks=10, distance=2)
    [slice(0, 30, None), slice(30, 50, None)]
    """
    ends = list(accumulate((length - d) * chunks for d in range(distance)))
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def targets(steps: Tensor, distance: int) -> Tensor:
    """(L, B, …) → (R, …), as the rows of all distances come: at distance d from t, that of step t + d − 1.

    >>> targets(torch.tensor([[1, 2], [3, 4]]), distance=2)
    tensor([1, 2, 3, 4, 3, 4])
    """
    length, chunks = steps.shape[:2]
    return steps.flatten(0, 1).index_select(0, _places(length, chunks, distance, steps.device))


def shares(counted: Tensor, distance: int) -> Tensor:
    """(L, B) → (R, D): what a row has in the mean over each distance, if steps count so much.

    >>> shares(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), distance=2).mT
    tensor([[0.3333, 0.3333, 0.0000, 0.3333, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.0000, 0.0000, 0.0000, 1.0000]])
    """
    of_rows = targets(counted, distance).unsqueeze(-1)
    apart = of_rows * _apart(*counted.shape, distance, counted.device)
    return apart / apart.sum(dim=0).clamp(min=1)


# Kept for ever, since captured graphs read them, and fit for training even if inference asked first.
@cache
@torch.inference_mode(False)
def equal_shares(length: int, chunks: int, distance: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """`shares` where all steps count."""
    return shares(torch.ones(length, chunks, device=device, dtype=dtype), distance)


@cache
@torch.inference_mode(False)
def _places(length: int, chunks: int, distance: int, device: torch.device) -> Tensor:
    parts = [torch.arange(d * chunks, length * chunks, device=device) for d in range(distance)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64, device=device)


@cache
@torch.inference_mode(False)
def _apart(length: int, chunks: int, distance: int, device: torch.device) -> Tensor:
    of_rows = [torch.full(((length - d) * chunks,), d, device=device) for d in range(distance)]
    return torch.cat(of_rows).unsqueeze(-1) == torch.arange(distance, device=device)

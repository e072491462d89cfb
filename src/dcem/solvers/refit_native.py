"""Elite weights and moments on the CPU as one kernel forward and one backward, also as operators."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dcem._native import OPERATORS, kernels, pointer, threads
from dcem.topk.standardize import DIGITS

_STATS = 4  # numbers that the soft top-k keeps of a row


class Settings(NamedTuple):
    """Those of `lml_native.forward` and `moments_native.forward`."""

    k: float
    tau: float
    slopes_at: float  # 0 for tau
    flags: int
    slowest: float
    floor: float
    near: float


def forward(
    values: Tensor,
    u: Tensor,
    last_mean: Tensor | None,
    last_sigma: Tensor | None,
    floors: Tensor | None,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights (*B, N) for values (*B, N), mean and σ (*B, n) of samples u (*B, N, n), and what to keep."""
    how = Settings(*settings)
    *batch, count, n = u.shape
    rows = u.numel() // (count * n)
    values, u = values.contiguous(), u.contiguous()
    last = [None if x is None else x.contiguous() for x in (last_mean, last_sigma)]
    floors = None if floors is None else floors.expand(*batch, n).contiguous()
    weights, mean, keep = torch.empty_like(values), u.new_empty(*batch, n), _new_keep(u)
    sigma = torch.empty_like(mean)
    kernels()["refit", u.dtype](
        rows, count, n, values.data_ptr(), u.data_ptr(), *map(pointer, last), how.k, how.tau, how.slopes_at,
        how.flags, DIGITS, how.slowest, how.floor, pointer(floors), how.near, threads(u), weights.data_ptr(),
        mean.data_ptr(), sigma.data_ptr(), keep.data_ptr(),
    )  # fmt: skip
    return weights, mean, sigma, keep


def backward(
    values: Tensor,
    u: Tensor,
    last_mean: Tensor | None,
    last_sigma: Tensor | None,
    weights: Tensor,
    mean: Tensor,
    keep: Tensor,
    gweights: Tensor | None,
    gmean: Tensor,
    gsigma: Tensor,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients for values and u, and with rank-mu for the last mean and standard deviation."""
    how = Settings(*settings)
    *_, count, n = u.shape
    values, u, weights, gmean, gsigma = (x.contiguous() for x in (values, u, weights, gmean, gsigma))
    last = [None if x is None else x.contiguous() for x in (last_mean, last_sigma)]
    gweights = None if gweights is None else gweights.contiguous()
    gvalues, gu = torch.empty_like(values), torch.empty_like(u)
    glast_mean, glast_sigma = (None if last_mean is None else torch.empty_like(mean) for _ in range(2))
    kernels()["refit_backward", u.dtype](
        u.numel() // (count * n), count, n, values.data_ptr(), u.data_ptr(), *map(pointer, last),
        weights.data_ptr(), mean.data_ptr(), keep.data_ptr(), how.slopes_at or how.tau, how.flags,
        how.slowest, pointer(gweights), gmean.data_ptr(), gsigma.data_ptr(), threads(u), gvalues.data_ptr(),
        gu.data_ptr(), pointer(glast_mean), pointer(glast_sigma),
    )  # fmt: skip
    return gvalues, gu, glast_mean, glast_sigma


def _new_keep(u: Tensor) -> Tensor:
    *batch, count, n = u.shape
    return u.new_empty(*batch, count + _STATS + 2 * n)


_INPUTS = "Tensor values, Tensor u, Tensor? last_mean, Tensor? last_sigma"
_SETTINGS = "float k, float tau, float slopes_at, int flags, float slowest, float floor, float near"
OPERATORS.define(f"refit({_INPUTS}, Tensor? floors, {_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor)")
OPERATORS.define(
    f"refit_backward({_INPUTS}, Tensor weights, Tensor mean, Tensor keep, Tensor? gweights, Tensor gmean,"
    f" Tensor gsigma, {_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor)"
)


def _backward(values: Tensor, u: Tensor, last_mean: Tensor | None, *inputs: Any) -> tuple[Tensor, ...]:
    """As operators return them, with placeholders for gradients only rank-mu has."""
    gvalues, gu, *glast = backward(values, u, last_mean, *inputs)
    return gvalues, gu, *(u.new_empty(0) if x is None else x for x in glast)


OPERATORS.impl("refit", forward, "CPU")
OPERATORS.impl("refit_backward", _backward, "CPU")


@torch.library.register_fake("dcem::refit", lib=OPERATORS)
def _(values: Tensor, u: Tensor, *_: Any) -> tuple[Tensor, ...]:
    mean = u.new_empty(*u.shape[:-2], u.shape[-1])
    return values.new_empty(values.shape), mean, torch.empty_like(mean), _new_keep(u)


@torch.library.register_fake("dcem::refit_backward", lib=OPERATORS)
def _(values: Tensor, u: Tensor, last_mean: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
    shape = (0,) if last_mean is None else last_mean.shape
    return values.new_empty(values.shape), u.new_empty(u.shape), u.new_empty(shape), u.new_empty(shape)

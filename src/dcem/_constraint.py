"""Constraints: scores that solvers rank instead of values, with feasible points before all others."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dcem._checks import over_rows
from dcem.solvers.base import Record

# The violation, relative to the worst one, at which a sample hardly counts as feasible any more. Tuned on
# projections: with a much larger value searches end outside, with a much smaller one gradients at low τ are
# noise.
_REACH = 0.4
_HARD = 0.01  # a temperature of this order is almost zero


class Constraint:
    """The user's g(x) <= 0, (*B, N, n) -> (*B, N, c) or (*B, N), as one violation per point: Σ max(g, 0)."""

    def __init__(self, g: Callable[[Tensor], Tensor]) -> None:
        self.g = g

    def __call__(self, x: Tensor) -> Tensor:
        """How far points x (*B, N, n) are from feasible, (*B, N): 0 where they are."""
        g = self.g(x)
        if not isinstance(g, Tensor):
            raise TypeError(f"minimize: constraint must return a tensor, got {type(g).__name__}")
        if g.shape == x.shape[:-1]:
            g = g.unsqueeze(-1)
        if g.shape[:-1] != x.shape[:-1]:
            raise ValueError(
                "minimize: constraint must return c values per sample, shape "
                f"({', '.join(map(str, x.shape[:-1]))}, c) for samples of shape {tuple(x.shape)}, "
                f"got shape {tuple(g.shape)}"
            )
        return g.to(x.dtype).relu().sum(-1)

    def infinite_outside(self, f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """f, infinite at points that are not feasible."""
        return lambda x: torch.where(self(x) == 0, f(x), torch.inf)


def scores(values: Tensor, violation: Tensor, softness: float | Tensor) -> Tensor:
    """Numbers to rank samples by, (*B, N), from values (*B, N) and violations (*B, N) >= 0.

    A feasible sample keeps its value v. Behind the worst of them come the others, by their violation h:

        s = o + a (v - o)   with   o = max v + (max v - min v) h / max h,   a = exp(-h / (r max h))

    with r = 0 at softness 0, where a is 1 for feasible samples and 0 for all others: feasible before
    infeasible, then by violation. At higher softness, r is about 0.4 and a is the degree to which a sample
    is treated as feasible, also in max v and min v. Scores are then continuous in v and h: the score of a
    sample that crosses the boundary does not jump, and its derivatives are complete. If all samples are
    further than r / 10 from feasible, a is 0 again: the search reduces the violation.

    Values of infeasible samples need not be finite. A sample that cannot be ranked gets NaN.
    """
    usable = violation.isfinite()
    feasible = violation == 0
    finite = values.isfinite()
    h = torch.where(usable, violation, 0.0)
    worst = h.amax(-1, keepdim=True)
    depth = h / torch.where(worst > 0, worst, 1.0)
    share = torch.where(feasible, 1.0, 0.0).to(values)
    if isinstance(softness, Tensor) or softness > 0:
        soft = over_rows(softness, "softness", values)
        reach = _REACH * soft / (soft + _HARD)
        least = torch.where(usable, depth, 1.0).amin(-1, keepdim=True)
        near = (1 - 10 * least / reach).clamp_min(0)  # if no sample is feasible, values hardly count
        share = torch.where(feasible, share, near * torch.exp(-depth / reach))
    share = torch.where(finite & usable, share, 0.0)
    v = torch.where(share > 0, values, 0.0)
    total = share.sum(-1, keepdim=True)
    mean = (share * v).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
    inside = mean + share * (v - mean)  # values of infeasible samples are pulled to the mean
    low, high = inside.amin(-1, keepdim=True), inside.amax(-1, keepdim=True)
    span, size = high - low, high.abs().detach()
    # With one feasible sample, or values that differ only by rounding, use their magnitude, or 1.
    span = torch.where(span > 128 * torch.finfo(values.dtype).eps * size, span, size)
    behind = high + torch.where(span > 0, span, 1.0) * depth
    outside = torch.where(usable, behind + share * (v - behind), torch.nan)
    return torch.where(feasible, torch.where(finite, values, torch.nan), outside)


class Incumbent(NamedTuple):
    """The best sample so far: feasible if any was, otherwise the one with the least violation."""

    x: Tensor  # (*B, n)
    value: Tensor  # (*B,)
    violation: Tensor  # (*B,), infinite if no sample can be ranked

    @staticmethod
    def of(record: Record) -> "Incumbent":
        """The best sample of an iteration."""
        assert record.violation is not None
        values, violation = record.values.detach(), record.violation.detach()
        feasible = (violation == 0) & values.isfinite()
        value = torch.where(feasible, values, torch.inf)
        depth = torch.where(violation > 0, violation, torch.inf)  # ignores NaN and points without a value
        order = torch.where(feasible.any(-1, keepdim=True), value, depth)
        index = order.argmin(-1, keepdim=True)
        x = record.samples
        x = x.gather(-2, index.unsqueeze(-1).expand(*index.shape, x.shape[-1])).squeeze(-2)
        value, violation, order = (part.gather(-1, index).squeeze(-1) for part in (values, violation, order))
        return Incumbent(x, value, torch.where(order.isfinite(), violation, torch.inf))

    def or_better(self, other: "Incumbent", moving: Tensor | None) -> "Incumbent":
        """Replaced by the other one in rows (*B,) where that is better, and that still move."""
        better = other.violation < self.violation
        better = better | ((other.violation == self.violation) & (other.value < self.value))
        if moving is not None:
            better = better & moving
        x = torch.where(better.unsqueeze(-1), other.x, self.x)
        return Incumbent(x, *(torch.where(better, b, a) for a, b in zip(self[1:], other[1:], strict=True)))

    def in_place_of(self, x: Tensor, constraint: Constraint) -> tuple[Tensor, Tensor]:
        """An answer x (*B, n), or the incumbent in rows where x violates more; and the violation (*B,)."""
        with torch.no_grad():
            own = constraint(x.unsqueeze(-2)).squeeze(-1)
        own = torch.where(own.isnan(), torch.inf, own)
        worse = self.violation < own
        return torch.where(worse.unsqueeze(-1), self.x, x), torch.where(worse, self.violation, own)

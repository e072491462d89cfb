"""What an uncertain cost counts as: the mean over models, the worst of them, or between the two."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Risk = Callable[[Tensor], Tensor]  # costs (..., E) of E models -> one cost (...)


def mean(costs: Tensor) -> Tensor:
    """The mean over the models: risk-neutral."""
    return costs.mean(-1)


def worst(costs: Tensor) -> Tensor:
    """The highest cost over the models."""
    return costs.amax(-1)


@dataclass(frozen=True)
class CVaR:
    """Conditional value at risk: the mean of the worst fraction `alpha` of the models' costs.

    1 is the mean over all E models, 1 / E or less the worst. A model can count partly: 0.5 of three models is
    the worst and half of the second.

    >>> CVaR(0.5)(torch.tensor([0.0, 9.0, 3.0]))
    tensor(7.)
    """

    alpha: float

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ValueError(f"CVaR: alpha must satisfy 0 < alpha <= 1, got {self.alpha}")

    def __call__(self, costs: Tensor) -> Tensor:
        share = self.alpha * costs.shape[-1]
        rank = torch.arange(costs.shape[-1], dtype=costs.dtype, device=costs.device)
        weight = (max(share, 1.0) - rank).clamp(0, 1)
        return (costs.sort(dim=-1, descending=True).values * weight).sum(-1) / weight.sum()


NAMED: dict[str, Risk] = {"mean": mean, "worst": worst}


def as_risk(risk: str | Risk | None, model: Any) -> Risk | None:
    """A risk measure by name or as a function; None for one model, whose cost is certain."""
    if risk is None:
        return mean if is_ensemble(model) else None
    if callable(risk):
        return risk
    if risk not in NAMED:
        raise ValueError(f"MPC: risk must be 'mean', 'worst', CVaR(alpha) or a function, got {risk!r}")
    return NAMED[risk]


def weighed(risk: Risk, costs: Tensor, x: Tensor) -> Tensor:
    """The costs (*B, N, E) of points x (*B, N, n), combined: (*B, N)."""
    if costs.shape[:-1] != x.shape[:-1]:
        asked = ", ".join(map(str, [*x.shape[:-1], "E"]))
        raise ValueError(
            f"MPC: risk needs several models, or costs of shape ({asked}) for E members of one, "
            f"got {tuple(costs.shape)}"
        )
    return risk(costs)


def is_ensemble(model: Any) -> bool:
    """Is it several models, not one that happens to be a tuple?"""
    return isinstance(model, list | tuple | nn.ModuleList) and not hasattr(model, "step")


def as_ensemble(model: Any) -> Any:
    """Several models, as modules if they are modules; a single model unchanged."""
    if not is_ensemble(model):
        return model
    if not len(model):
        raise ValueError("MPC: model must be a model or several of them, got none")
    return nn.ModuleList(model) if all(isinstance(m, nn.Module) for m in model) else tuple(model)


def members(model: Any) -> Sequence[Any]:
    """The models of an ensemble; one alone is the only member."""
    return list(model) if is_ensemble(model) else [model]

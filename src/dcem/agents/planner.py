"""The planner of an agent: the cross-entropy method over action sequences, imagined by a world model."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from dcem.capture import capture
from dcem.control import MPC
from dcem.distributions import Gaussian
from dcem.models import RSSM
from dcem.solvers import DCEM

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

Planner = Callable[..., Tensor]
"""``plan(states)``: model states (E, S) → the actions (E, m) to take now.

``plan(states, noise)`` plans with given noise (T, E, N, H m) and is a deterministic function.
"""


@dataclass(frozen=True)
class PlannerConfig:
    """How much to plan. The defaults are the paper's.

    Attributes:
        samples: N, action sequences an iteration.
        elites: k, those the next iteration starts from.
        iterations: T.
        horizon: H, steps to look ahead.
        sigma: the first standard deviation of every action, around zero.
        dtype: what the model imagines in: float32, float16 or bfloat16. The search itself is in float32.
    """

    samples: int = 1000
    elites: int = 100
    iterations: int = 10
    horizon: int = 12
    sigma: float = 1.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("samples", "iterations", "horizon"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 1 <= self.elites <= self.samples:
            raise ValueError(f"elites must be from 1 to samples={self.samples}, got {self.elites}")
        if not self.sigma > 0:
            raise ValueError(f"sigma must be positive, got {self.sigma}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")


def make_planner(model: RSSM, config: PlannerConfig, generator: Generator | None = None) -> Planner:
    """A planner over ``model``, whose weights are read at every call and may change in place.

    The model's dtype is what it imagines in. On a CUDA device a solve is one captured graph. No gradients.

    >>> from dcem.models import RSSMConfig
    >>> model = RSSM(3, 1, RSSMConfig(hidden=8, width=8))
    >>> plan = make_planner(model, PlannerConfig(samples=20, elites=4, iterations=2, horizon=3))
    >>> plan(model.initial(torch.zeros(5, 3))).shape
    torch.Size([5, 1])
    """
    device = next(model.parameters()).device
    solver = DCEM(
        n_samples=config.samples,
        n_elite=config.elites,
        n_iters=config.iterations,
        tau=0.0,
        distribution=Gaussian(sigma=config.sigma),
    )
    mpc = MPC(_Imagination(model), config.horizon, solver=solver, action_dim=model.action_dim).to(device)

    @torch.no_grad()
    def plan(states: Tensor, noise: Tensor | None = None) -> Tensor:
        return mpc(states, generator=generator, noise=noise, cost=False).action

    return capture(plan, generator=generator)


def planning_copy(model: RSSM, config: PlannerConfig) -> RSSM:
    """A copy to plan with, in the planner's precision: the model itself may change while it is used.

    It has no use for the normaliser: states come from the model, in its features.
    """
    return copy.deepcopy(model).requires_grad_(False).to(DTYPES[config.dtype])


@torch.no_grad()
def copy_weights(model: RSSM, planning: RSSM) -> None:
    """Bring a `planning_copy` up to date, in place."""
    torch._foreach_copy_(list(planning.parameters()), list(model.parameters()))


class _Imagination:
    """A model that steps in its own precision, under a search that adds up costs in another."""

    def __init__(self, model: RSSM) -> None:
        self.model = model
        self.dtype = next(model.parameters()).dtype

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        state, cost = self.model.step(state.to(self.dtype), action.to(self.dtype))
        return state, cost.to(action.dtype)

"""What DCEM and MPPI share: sample, evaluate, weight, refit."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Generator, Tensor
from torch.utils import _pytree as pytree

from dcem._checks import check_count, over_rows
from dcem.distributions import Distribution, Gaussian
from dcem.distributions.box import Box
from dcem.noise import Noise, Normal
from dcem.solvers.base import Evaluate, Record, Solver
from dcem.solvers.refine import Refine
from dcem.solvers.schedule import Schedule, at, check_schedule, rule
from dcem.topk.standardize import Scaling, gated


class SamplingState(NamedTuple):
    phi: Any  # the distribution's own state
    best_x: Tensor | None = None  # (*B, n), when the best sample is the result
    best_value: Tensor | None = None  # (*B,)
    moving: Tensor | None = None  # (*B,), when rows stop early
    elites: Tensor | None = None  # (*B, E, n) of the last iteration, in the distribution's coordinates
    proposals: Tensor | None = None  # (*B, P, n), always tried, in the distribution's coordinates
    own: Any = None  # further state of a particular solver


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplingSolver(Solver):
    """Settings common to solvers that refit a sampling distribution to weighted samples.

    Args:
        n_samples: N, samples per iteration.
        n_iters: T, iterations.
        distribution: the sampling distribution and the bounds of the domain.
        normalize: normalise the values of every iteration, which makes the solution invariant to the scale
            and offset of the objective: True by their standard deviation, 'half' by the spread of the better
            half, which is robust to a few huge values. False: use them unchanged.
        returns: 'mean' (of the last distribution) or 'best' (of all samples).
        sigma_min: floor for the fitted standard deviation.
        smoothing: fraction of the previous distribution to keep in every update, from 0 to 1. A tensor (a
            scalar, or one value per row) may require gradients; can be a schedule.
        widen: factor on the standard deviation after every update: above 1 it slows convergence. Can be a
            tensor or a schedule, like smoothing.
        noise: `Normal()`, `Antithetic()`, `Sobol()`, or for action sequences `Colored()`; see `dcem.noise`.
        keep_elites: number of best samples of an iteration that are reused in the next one (iCEM), replacing
            new ones.
        refine: `Refine()` for gradient steps on the best samples of every iteration.
        stop_below: a row stops, independently of the others, once an update moves its mean by less than this
            in every dimension. None: never.
    """

    State = SamplingState

    n_samples: int = 100
    n_iters: int = 10
    distribution: Distribution = field(default_factory=Gaussian)
    normalize: Scaling = True
    returns: Literal["mean", "best"] = "mean"
    sigma_min: float = 0.0
    smoothing: Schedule = 0.0
    widen: Schedule = 1.0
    noise: Noise = field(default_factory=Normal)
    keep_elites: int = 0
    refine: Refine | None = None
    stop_below: float | None = None
    _paced: Distribution = field(init=False, repr=False)  # `distribution`, set to this number of iterations

    def __post_init__(self) -> None:
        name = type(self).__name__
        least = self.samples(1)
        for field_name, value in (("n_samples", least), ("n_iters", self.n_iters)):
            check_count(f"{name}: {field_name}", value)
        if not isinstance(self.keep_elites, int) or not 0 <= self.keep_elites < least:
            raise ValueError(
                f"{name}: keep_elites must satisfy 0 <= keep_elites < n_samples = {least}, "
                f"as an integer, got {self.keep_elites!r}"
            )
        if self.refine is not None and not (
            isinstance(self.refine, Refine) and self.keep_elites + self.refine.count < least
        ):
            raise ValueError(
                f"{name}: refine must be a Refine of fewer points than n_samples = {least}, "
                f"got {self.refine!r}"
            )
        if self.returns not in ("mean", "best"):
            raise ValueError(f"{name}: returns must be 'mean' or 'best', got {self.returns!r}")
        if self.normalize not in (True, False, "half"):
            raise ValueError(f"{name}: normalize must be True, False or 'half', got {self.normalize!r}")
        if not self.sigma_min >= 0:
            raise ValueError(f"{name}: sigma_min must be >= 0, got {self.sigma_min}")
        if not isinstance(self.distribution, Distribution):
            raise TypeError(
                f"{name}: distribution must be one such as Gaussian(), a subclass of dcem.Distribution, "
                f"got {self.distribution!r}"
            )
        if self.refine is not None:
            self.refine.check(self.distribution, name)
        if isinstance(self.noise, type) or not hasattr(self.noise, "draw"):
            raise TypeError(f"{name}: noise must have a method draw, got {self.noise!r}")
        share = rule(f"{name}: smoothing", "lie in [0, 1]", lambda x: abs(x - 0.5) <= 0.5)
        check_schedule(f"{name}: smoothing", self.smoothing, self.n_iters, share)
        factor = rule(f"{name}: widen", "be positive", lambda x: x > 0)
        check_schedule(f"{name}: widen", self.widen, self.n_iters, factor)
        if self.stop_below is not None and not self.stop_below >= 0:
            raise ValueError(f"{name}: stop_below must be >= 0 or None, got {self.stop_below}")
        object.__setattr__(self, "_paced", self.distribution.paced(self.n_iters))

    def samples(self, n: int) -> int:
        """N, the number of samples per iteration in n dimensions."""
        return self.n_samples

    def weights(self, values: Tensor, t: int) -> Tensor:
        """Weights (*B, N) for values (*B, N): more for lower ones, 0 for those that are not finite.

        Negative weights, where a solver has them, only reduce the spread.
        """
        raise NotImplementedError

    def slope(self, values: Tensor, t: int) -> Tensor:
        """How much each weight changes with its value (*B, N), up to a factor per row."""
        raise NotImplementedError

    def fit(self, phi: Any, u: Tensor, weights: Tensor) -> Any:
        """The next distribution, from the last one, samples u and their weights."""
        return self._paced.fit(phi, u, weights, self.sigma_min)

    def refit(self, state: SamplingState, u: Tensor, values: Tensor, t: int) -> tuple[SamplingState, Tensor]:
        """The state after an iteration, from samples u (*B, N, n), their values and their weights."""
        weights = gated(self.weights(values, t), values)
        return state._replace(phi=self._damped(self.fit(state.phi, u, weights), state.phi, t)), weights

    def _damped(self, new: Any, old: Any, t: int) -> Any:
        """The distribution of the next iteration, from the fitted and the previous one."""
        share, factor = self._row_setting("smoothing", t, new.mean), self._row_setting("widen", t, new.mean)
        if isinstance(share, Tensor) or share != 0:
            new = self.distribution.blend(new, old, share)
        if isinstance(factor, Tensor) or factor != 1:
            new = self.distribution.widen(new, factor)
        return new

    def _row_setting(self, name: str, t: int, like: Tensor) -> float | Tensor:
        """A setting in iteration t: a number, or a tensor over the rows of `like` (*B, n)."""
        value = at(getattr(self, name), t)
        if not isinstance(value, Tensor):
            return value
        value = over_rows(value, f"{type(self).__name__}: {name}", like)
        return value.squeeze(-1) if isinstance(value, Tensor) and value.ndim else value

    @property
    def box(self) -> Box | None:
        return self.distribution.box

    def within(self, box: Box, steps: int = 1) -> Self:
        return replace(self, distribution=self.distribution.within(box, steps))

    def init(self, x0: Tensor) -> SamplingState:
        state = SamplingState(self.distribution.init(x0))
        if self.returns == "best":
            state = state._replace(best_x=x0, best_value=x0.new_full(x0.shape[:-1], torch.inf))
        if self.stop_below is not None:
            state = state._replace(moving=torch.ones(x0.shape[:-1], dtype=torch.bool, device=x0.device))
        return state

    def resume(self, state: SamplingState, f: Callable[[Tensor], Tensor]) -> SamplingState:
        x = self.distribution.decode(state.phi.mean)
        new = self.init(x.detach())
        if type(new.phi) is not type(state.phi):
            raise ValueError(
                f"minimize: x0 must be a state of {type(self.distribution).__name__}, of type "
                f"{type(new.phi).__name__}, got one of type {type(state.phi).__name__}"
            )
        new = new._replace(phi=state.phi)
        if self.returns == "best":
            best = self.distribution.answer(state.phi) if state.best_x is None else state.best_x
            with torch.no_grad():
                value = f(best.unsqueeze(-2)).squeeze(-1)
            new = new._replace(best_x=best, best_value=torch.where(value.isfinite(), value, torch.inf))
        count = self.keep_elites + (self.refine.count if self.refine is not None else 0)
        if count and state.elites is not None:
            new = new._replace(elites=state.elites[..., :count, :])
        return new

    def propose(self, state: SamplingState, x: Tensor) -> SamplingState:
        inside = x if self.box is None else self.box.clamp(x)
        return state._replace(proposals=self.distribution.encode(inside))

    def draw(self, x0: Tensor, t: int, generator: Generator | None) -> Tensor:
        *batch, n = x0.shape
        return self.noise.draw((*batch, self.samples(n), n), x0, generator)

    def step(
        self, evaluate: Evaluate, state: SamplingState, noise: Tensor | None, t: int
    ) -> tuple[SamplingState, Record]:
        expected = self.samples(state.phi.mean.shape[-1])
        if noise is None or noise.shape[-2] != expected:
            raise ValueError(
                f"{type(self).__name__}: noise must be for n_samples = {expected} in every iteration, "
                f"got {'none' if noise is None else noise.shape[-2]}"
            )
        if state.elites is None and state.proposals is None:
            u, x = self.distribution.draw(state.phi, noise)
        else:
            u = self.distribution.sample(state.phi, noise)
            if state.elites is not None:
                u = torch.cat([state.elites, u[..., state.elites.shape[-2] :, :]], dim=-2)
            if state.proposals is not None:
                u = torch.cat([u, state.proposals], dim=-2)
            x = self.distribution.decode(u)

        def influence(values: Tensor) -> Tensor:
            # |∂μ/∂v| is proportional to the weight's slope times the distance from the mean.
            weights = self.weights(values, t).clamp_min(0.0)
            mean = (weights / weights.sum(-1, keepdim=True)).unsqueeze(-2) @ u
            return self.slope(values, t) * torch.linalg.vector_norm(u - mean, dim=-1)

        values = evaluate(x, influence)
        new, weights = self.refit(state, u, values, t)
        new = self._keep_best(new, x, values)
        kept = [self._elites(u, values, self.keep_elites)] if self.keep_elites else []
        if self.refine is not None:
            best = self._elites(u, values, self.refine.n)
            kept.append(self.refine.samples(evaluate, self.distribution, new.phi, best))
        if kept:
            new = new._replace(elites=torch.cat(kept, dim=-2))
        if state.moving is not None:
            new = self._stop_rows(state, new)
        return new, Record(t, x, values, weights, self.distribution.decode(new.phi.mean), new.phi)

    def _elites(self, u: Tensor, values: Tensor, count: int) -> Tensor:
        """The best samples (*B, count, n), without proposals: they return anyway, and would count twice."""
        finite = torch.where(values.isfinite(), values, torch.inf)[..., : self.samples(u.shape[-1])]
        best = finite.topk(count, dim=-1, largest=False).indices
        return u.gather(-2, best.unsqueeze(-1).expand(*best.shape, u.shape[-1]))

    def result(self, state: SamplingState) -> Tensor:
        x = self.distribution.answer(state.phi) if state.best_x is None else state.best_x
        return x if self.box is None else self.box.hold(x)

    def had_values(self, state: SamplingState) -> Tensor:
        # Check the mean: an iteration without any makes it NaN, but the best sample may be an earlier one.
        return state.phi.mean.isfinite().all(-1)

    def moving(self, state: SamplingState) -> Tensor | None:
        return state.moving

    def _keep_best(self, state: SamplingState, x: Tensor, values: Tensor) -> SamplingState:
        if state.best_x is None or state.best_value is None:
            return state
        finite = torch.where(values.isfinite(), values, torch.inf)
        value, index = finite.min(-1)
        best = x.gather(-2, index[..., None, None].expand(*index.shape, 1, x.shape[-1])).squeeze(-2)
        better = value < state.best_value
        return state._replace(
            best_x=torch.where(better.unsqueeze(-1), best, state.best_x),
            best_value=torch.where(better, value, state.best_value),
        )

    def _stop_rows(self, old: SamplingState, new: SamplingState) -> SamplingState:
        """Rows that have stopped keep their state; rows that barely moved stop from now on."""
        assert old.moving is not None
        moved = (new.phi.mean - old.phi.mean).abs().amax(-1) >= self.stop_below
        moving = old.moving

        kept = {
            name: in_rows(moving, getattr(new, name), getattr(old, name))
            for name in ("phi", "best_x", "best_value", "elites")
            if getattr(old, name) is not None
        }
        return new._replace(moving=moving & moved, **kept)


def in_rows(mask: Tensor, new: Any, old: Any) -> Any:
    """The new tensors in the rows (*B,) of the mask, the old ones in the others; of any structure."""

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(mask.reshape(mask.shape + (1,) * (new.ndim - mask.ndim)), new, old)

    return pytree.tree_map(choose, new, old)

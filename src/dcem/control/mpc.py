"""Model-predictive control as a differentiable layer."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.utils import _pytree as pytree

from dcem._checks import check_callable, check_count
from dcem._compile import Program
from dcem._learned import learned, register_settings, resolved
from dcem._minimize import fixed_noise, minimize
from dcem.backward import Backward, Unroll
from dcem.control.action_box import action_bounds, action_size, as_vector
from dcem.control.knots import Knots
from dcem.control.proposals import PolicyProposals
from dcem.control.risk import Risk, as_ensemble, as_risk, is_ensemble, members, weighed
from dcem.control.rollout import Model, as_model, batch_of, one_candidate, sequence_constraint, sequence_cost
from dcem.control.space import ActionSpace, LatentSpace
from dcem.distributions.box import Bound
from dcem.solvers import DCEM, Record, Solver


class Plan(NamedTuple):
    """What the controller intends."""

    action: Tensor  # (*B, m), to apply now
    actions: Tensor  # (*B, H, m), the whole sequence
    cost: Tensor | None  # (*B,), the sequence's cost in the model; None when not requested
    latent: Tensor  # (*B, n), the optimiser's answer: z with a decoder, else actions (or knots) in a row
    trace: tuple[Record, ...] | None = None  # one record per iteration of the solver, when requested
    spread: Tensor | None = None  # (*B, n), the last standard deviation, of a solver that has one
    violation: Tensor | None = None  # (*B,), of the constraint along the plan: 0 where it is kept


class MPC(nn.Module):
    """Plan action sequences that minimise the cost predicted by a model, differentiably.

        û = argmin_u Σ_t γ^t C(x_t, u_t)  with  x_{t+1} = f(x_t, u_t),   or over z with u = decoder(z)

    Learned settings of the solver (a `Parameter`, `dcem.Positive`) are among the layer's parameters.

    Args:
        model: anything with `step(state, action) -> (next_state, cost)`, or such a function; see
            `dcem.control.Model`. A module's parameters become parameters of this one. Or an ensemble, see
            `risk`.
        horizon: H, number of steps in a plan.
        low, high: bounds of the actions; numbers, tensors or arrays (m,), such as those of a Gymnasium action
            space. None: the decoder's, otherwise -1 and 1. Planned actions are always within the bounds.
        solver: any solver of `dcem`, by default `DCEM()`. Without a decoder it searches within the action
            bounds, with an initial standard deviation of half their extent unless its distribution sets one.
            If its distribution has bounds, they must be the same.
        decoder: a `Decoder`, or a module with the same `latent_dim`, `horizon`, `action_dim` and `forward`,
            which maps a latent space to action sequences: the search is then over z, within the bounds (if
            any) of the solver's own distribution.
        action_dim: m, if neither the bounds nor the model's `action_dim` define it.
        discount: γ, weight γ^t for the cost of step t.
        value: state (..., s) -> expected return after the last step (...): γ^H value(x_H) is subtracted from
            the cost. A module's parameters become parameters of this one.
        terminal_cost: the same as a cost, which is added.
        proposals: candidates among the samples of every iteration: a function from states (*B, s) to action
            sequences (*B, P, H, m), with a decoder to latent points (*B, P, d); or `PolicyProposals`, which
            rolls out a policy in the model. Actions outside the bounds are clamped. A module's parameters
            become parameters of this one.
        knots: search over K actions instead of H and interpolate between them; K, or `Knots(K, 'cubic')`.
        risk: how to combine the costs of several models: 'mean', 'worst', `CVaR(alpha)`, or a function from
            costs (..., E) to (...). `model` is then a list of E models, or one whose costs (and values)
            have a last dimension for its E members. None: the mean over a list of models.
        constraint: (x, u), a state (..., s) and the action (..., m) that led there -> (..., c), which must be
            <= 0 at every step of a plan, in every model of an ensemble. A plan is feasible if any sample was,
            see `dcem.minimize`. Models must have a `step`.
        cold_start: the initial mean without a warm start: 'centre' (of the bounds; zero with a decoder) or
            'proposal', the first proposal.
        warm_spread: a warm start also keeps the previous plan's standard deviation, shifted by one step, with
            a floor of this fraction of the initial one. None: only the mean is kept.
        backward: how to differentiate a plan, see `dcem.backward`.
        compile: compile, which is slow to start and then faster: on the CPU the whole search, as
            `dcem.capture` does; on other devices the objective (decoder and rollout), with torch.compile.
        seed: in evaluation mode, `mpc.eval()`, use the noise of this seed in every call and for every row.
            None: new noise.

    >>> class Integrator:
    ...     def step(self, state, action):
    ...         return state + action, (state + action).square().sum(-1)
    >>> mpc = MPC(Integrator(), horizon=3, action_dim=1, solver=DCEM(n_samples=200, n_iters=20, tau=0.1))
    >>> plan = mpc(torch.tensor([0.5]))
    >>> plan.actions.shape, bool((plan.action + 0.5).abs() < 0.1)
    (torch.Size([3, 1]), True)
    >>> plan = mpc(torch.tensor([0.1]), warm_start=plan)
    """

    low: Tensor
    high: Tensor

    def __init__(
        self,
        model: Model | Callable[[Any, Tensor], tuple[Any, Tensor]] | Sequence[Model] | nn.ModuleList,
        horizon: int,
        low: Bound | None = None,
        high: Bound | None = None,
        solver: Solver | None = None,
        decoder: nn.Module | None = None,
        action_dim: int | None = None,
        discount: float = 1.0,
        value: Callable[[Any], Tensor] | None = None,
        terminal_cost: Callable[[Any], Tensor] | None = None,
        proposals: Callable[[Any], Tensor] | PolicyProposals | None = None,
        knots: int | Knots | None = None,
        risk: str | Risk | None = None,
        constraint: Callable[[Any, Tensor], Tensor] | None = None,
        cold_start: Literal["centre", "proposal"] = "centre",
        warm_spread: float | None = None,
        backward: Backward = Unroll(),  # noqa: B008 (immutable)
        compile: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_count("MPC: horizon", horizon)
        if not 0 < discount <= 1:
            raise ValueError(f"MPC: discount must satisfy 0 < discount <= 1, got {discount}")
        if value is not None and terminal_cost is not None:
            raise ValueError("MPC: value and terminal_cost say the same with another sign: give one of them")
        if solver is not None and not isinstance(solver, Solver):
            raise TypeError(f"MPC: solver must be a solver such as DCEM(), got {solver!r}")
        if decoder is not None and decoder.horizon != horizon:
            raise ValueError(f"MPC: the decoder's horizon must be {horizon}, got {decoder.horizon}")
        knots = Knots(knots) if isinstance(knots, int) else knots
        self.solver: Any = DCEM() if solver is None else solver
        _check_search(horizon, self.solver, decoder, knots, proposals, cold_start, warm_spread)
        self.model: Any = as_ensemble(model)
        self.decoder: Any = decoder
        self.horizon, self.knots, self.discount = horizon, knots, discount
        self.value, self.terminal_cost, self.proposals = value, terminal_cost, proposals
        self.risk, self.constraint = as_risk(risk, self.model), constraint
        self.cold_start, self.warm_spread = cold_start, warm_spread
        self.backward_mode, self.seed = backward, seed
        low, high = action_bounds(low, high, decoder)
        self.action_dim = action_size(members(self.model)[0], low, high, decoder, action_dim)
        self.register_buffer("low", as_vector(low, self.action_dim, "low"))
        self.register_buffer("high", as_vector(high, self.action_dim, "high"))
        if not (self.low < self.high).all():
            raise ValueError(f"MPC: bounds must satisfy low < high everywhere, got low={low}, high={high}")
        register_settings(self, self.solver)
        self._searching = self._made_once()
        self._program = Program() if compile else None

    def forward(
        self,
        state: Any,
        warm_start: Plan | None = None,
        *,
        start: Tensor | None = None,
        fresh: Tensor | None = None,
        generator: Generator | None = None,
        noise: Sequence[Tensor | None] | Tensor | None = None,
        cost: bool = True,
        trace: bool = False,
    ) -> Plan:
        """Plan from a state (*B, s), or a nesting of tensors (B, ...), each with the batch first.

        Args:
            warm_start: the previous plan to start from, shifted by one step (a latent plan unchanged).
            start: the initial mean of rows without a warm start: actions (*B, H, m), or with a decoder (*B,
                d).
            fresh: rows (*B,) that ignore the warm start, because a new episode begins.
            generator, noise, trace: see `dcem.minimize`.
            cost: also evaluate the plan's cost.
        """
        state = pytree.tree_map(self._as_tensor, state)
        solver = self._searching or self._space.inside(resolved(self.solver))
        seed = self.seed if generator is None and not self.training else None
        proposed = None
        if self.proposals is not None:
            fixed = seed if noise is None else self.seed or 0
            proposed = self._space.points(self.propose(state, generator, fixed))
        cold = self._cold(state, start, proposed, solver)
        x0, solver = self._warm(cold, warm_start, fresh, solver)
        if noise is None and seed is not None:
            noise = fixed_noise(solver, x0, seed)
        objective: Callable[[Tensor, Any], Tensor] = self.total_cost
        if self._program is not None and x0.device.type != "cpu":
            objective = self._program.alone(objective)
        with self._program() if self._program is not None else nullcontext():
            sol = minimize(
                lambda x: objective(x, state),
                solver,
                x0,
                constraint=None if self.constraint is None else lambda x: self.constraint_values(x, state),
                proposals=proposed,
                backward=self.backward_mode,
                generator=generator,
                noise=noise,
                cost=cost,
                trace=trace,
            )
        actions = self.decode(sol.x, state)
        spread = getattr(getattr(sol.state, "phi", None), "sigma", None)
        return Plan(actions[..., 0, :], actions, sol.cost, sol.x, sol.trace, spread, sol.violation)

    def propose(self, state: Any, generator: Generator | None = None, seed: int | None = None) -> Tensor:
        """What `proposals` offers for states (*B, s): actions (*B, P, H, m), with a decoder z (*B, P, d).

        With a seed, the noise of a policy is the same in every call and for every row.
        """
        if self.proposals is None:
            raise ValueError("MPC: proposals must be given to have any")
        batch, like = batch_of(state)
        point = self._space.shape
        if isinstance(self.proposals, PolicyProposals):
            if seed is None:
                noise = self.proposals.draw((*batch, *point), like, generator)
            else:  # not the seed of the search, whose samples it would repeat
                row = self.proposals.draw(point, like, Generator(like.device).manual_seed(seed + 1))
                noise = row.expand(*batch, *row.shape)
            return self.proposals(as_model(members(self.model)[0]), state, noise, self.low, self.high)
        found = self.proposals(state)
        if found.shape[: len(batch)] != batch or found.shape[len(batch) + 1 :] != point:
            asked = ", ".join(map(str, [*batch, "P", *point]))
            raise ValueError(f"MPC: proposals must return shape ({asked}), got {tuple(found.shape)}")
        return found

    def total_cost(self, x: Tensor, state: Any) -> Tensor:
        """The cost of points x (*B, N, n) of the search space from state (*B, s): (*B, N)."""
        actions = self.decode(x, one_candidate(state, x))
        terminal = self.terminal_cost if self.value is None else lambda last: -self.value(last)  # type: ignore[misc]
        costs = [
            sequence_cost(as_model(model), state, actions, self.discount, terminal)
            for model in members(self.model)
        ]
        if self.risk is None:
            return costs[0]
        return weighed(self.risk, torch.stack(costs, -1) if is_ensemble(self.model) else costs[0], x)

    def constraint_values(self, x: Tensor, state: Any) -> Tensor:
        """The constraint's values along points x (*B, N, n) from state (*B, s): (*B, N, H c)."""
        if self.constraint is None:
            raise ValueError("MPC: constraint must be given to have values")
        actions = self.decode(x, one_candidate(state, x))
        values = [
            sequence_constraint(as_model(model), state, actions, self.constraint)
            for model in members(self.model)
        ]
        return torch.cat(values, dim=-1)

    def decode(self, x: Tensor, state: Any) -> Tensor:
        """The action sequences (..., H, m) for points x (..., n) of the search space."""
        return self._space.actions(x, state)

    @property
    def search_dim(self) -> int:
        """n, the dimension of the search space."""
        return self._space.dim

    def _made_once(self) -> Solver | None:
        """The solver for all plans; None if settings are learned, since their graph is built per plan."""
        self._space: Any = (
            ActionSpace(self.horizon, self.low, self.high, self.knots)
            if self.decoder is None
            else LatentSpace(self.decoder)
        )
        solver = self._space.inside(resolved(self.solver))
        return None if any(learned(self.solver)) else solver

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "MPC":
        """Move to another device or dtype, and the solver's bounds along."""
        super()._apply(fn, recurse)
        self._searching = self._made_once()
        return self

    def _as_tensor(self, part: Any) -> Any:
        """A part of a state: tensors unchanged, arrays and numbers as tensors like the bounds."""
        return part if isinstance(part, Tensor) else torch.as_tensor(part).to(self.low)

    def _cold(self, state: Any, start: Tensor | None, proposed: Tensor | None, solver: Solver) -> Tensor:
        """The first mean (*B, n) of a cold start."""
        batch, like = batch_of(state)
        if start is not None:
            expected = (*batch, *self._space.shape)
            if start.shape != expected:
                raise ValueError(f"MPC: start must have shape {expected}, got {tuple(start.shape)}")
            cold = self._space.points(start.to(like))
        elif self.cold_start == "proposal" and proposed is not None:
            cold = proposed[..., 0, :]
        else:
            return self._space.centre(batch, like)
        return cold if solver.box is None else solver.box.clamp(cold)

    def _warm(
        self, cold: Tensor, last: Plan | None, fresh: Tensor | None, solver: Any
    ) -> tuple[Tensor, Solver]:
        """The first mean (*B, n), and the solver with the first spread, for rows that continue a plan."""
        if last is None:
            return cold, solver
        if last.latent.shape != cold.shape:
            raise ValueError(
                f"MPC: warm_start must be a plan whose latent has shape {tuple(cold.shape)}, "
                f"got {tuple(last.latent.shape)}"
            )
        new = torch.zeros_like(cold[..., :1], dtype=torch.bool) if fresh is None else fresh.unsqueeze(-1)
        in_a_row = self.decoder is None and self.knots is None
        point = last.actions.flatten(-2) if in_a_row else last.latent
        mean = torch.where(new, cold, self._space.later(point.detach()))
        if self.warm_spread is None or last.spread is None:
            return mean, solver
        first = solver.distribution.init(cold).sigma
        kept = self._space.later(last.spread.detach(), end=first)
        sigma = torch.where(new, first, torch.maximum(kept, self.warm_spread * first))
        return mean, replace(solver, distribution=replace(solver.distribution, sigma=sigma))


def _check_search(
    horizon: int, solver: Any, decoder: Any, knots: Any, proposals: Any, cold_start: str, warm_spread: Any
) -> None:
    """Raise an error if settings of the search do not fit together."""
    if knots is not None and (not isinstance(knots, Knots) or knots.count > horizon):
        raise ValueError(
            f"MPC: knots must be Knots, or a number of at most horizon = {horizon}, got {knots!r}"
        )
    if proposals is not None:
        check_callable("MPC: proposals", proposals)
    if decoder is not None and knots is not None:
        raise ValueError("MPC: knots must be left out where there is a decoder, which makes whole sequences")
    if decoder is not None and isinstance(proposals, PolicyProposals):
        raise ValueError(
            "MPC: proposals must be latent points where there is a decoder, not a policy's actions"
        )
    if cold_start not in (("centre",) if proposals is None else ("centre", "proposal")):
        raise ValueError(
            f"MPC: cold_start must be 'centre', or 'proposal' where there are proposals, got {cold_start!r}"
        )
    if warm_spread is not None and not 0 <= warm_spread <= 1:
        raise ValueError(f"MPC: warm_spread must lie in [0, 1], got {warm_spread}")
    if warm_spread is not None and not hasattr(getattr(solver, "distribution", None), "sigma"):
        raise ValueError(f"MPC: warm_spread needs a solver whose distribution has a sigma, got {solver!r}")

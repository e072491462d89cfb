"""Model-predictive control as a differentiable layer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from dcem._minimize import minimize
from dcem.backward import Unroll
from dcem.control.rollout import Model, sequence_cost
from dcem.solvers import DCEM, Record


class Plan(NamedTuple):
    """What the controller intends."""

    action: Tensor  # (*B, m), to apply now
    actions: Tensor  # (*B, H, m), the whole sequence
    cost: Tensor | None  # (*B,), what the model says the sequence costs; None when not asked for
    latent: Tensor  # (*B, n), the optimiser's answer: z with a decoder, else the actions in a row
    trace: tuple[Record, ...] | None = None  # one record an iteration of the solver, when asked for


class MPC(nn.Module):
    """Plans action sequences that minimise the cost a model predicts; gradients reach all it is made of.

        û = argmin_u Σ_t C(x_t, u_t)  with  x_{t+1} = f(x_t, u_t),   or over z with u = decoder(z)

    Args:
        model: anything with `step(state, action) -> (next_state, cost)`; see `dcem.control.Model`. A module's
            parameters become parameters of this one.
        horizon: H, steps to look ahead.
        low, high: the action box; numbers or tensors (m,).
        solver: any solver of `dcem`. Without a decoder its distribution is bounded by the action box.
        decoder: a `Decoder`, or a module with the same `latent_dim`, `horizon`, `action_dim` and `forward`,
            which maps a latent space to action sequences: the search is then over z, within the bounds (if
            any) of the solver's own distribution.
        action_dim: m, where neither the bounds nor the model's `action_dim` tell.
        discount: γ, weight γ^t for the cost of step t.
        terminal_cost: state (..., s) -> cost (...), added after the last step.
        backward: how to differentiate a plan, see `dcem.backward`.
        compile: fuse the objective (decoder, rollout) with torch.compile: slow to start, then faster, for
            many plans of the same shape.

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
        model: Model,
        horizon: int,
        low: float | Tensor = -1.0,
        high: float | Tensor = 1.0,
        solver: Any = None,
        decoder: nn.Module | None = None,
        action_dim: int | None = None,
        discount: float = 1.0,
        terminal_cost: Callable[[Tensor], Tensor] | None = None,
        backward: Unroll = Unroll(),  # noqa: B008 (immutable)
        compile: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(horizon, int) or horizon < 1:
            raise ValueError(f"MPC: horizon must be a positive integer, got {horizon!r}")
        if not 0 < discount <= 1:
            raise ValueError(f"MPC: discount must satisfy 0 < discount <= 1, got {discount}")
        if decoder is not None and decoder.horizon != horizon:
            raise ValueError(f"MPC: the decoder's horizon must be {horizon}, got {decoder.horizon}")
        self.model, self.horizon = model, horizon
        self.decoder: Any = decoder
        self.discount, self.terminal_cost, self.backward_mode = discount, terminal_cost, backward
        self.action_dim = _action_dim(model, low, high, decoder, action_dim)
        bounds = [
            torch.as_tensor(b, dtype=torch.get_default_dtype()).expand(self.action_dim) for b in (low, high)
        ]
        if not (bounds[0] < bounds[1]).all():
            raise ValueError(f"MPC: bounds must satisfy low < high everywhere, got low={low}, high={high}")
        self.register_buffer("low", bounds[0].clone())
        self.register_buffer("high", bounds[1].clone())
        self.solver = DCEM() if solver is None else solver
        self._total_cost = torch.compile(self.total_cost, dynamic=False) if compile else self.total_cost

    def forward(
        self,
        state: Tensor,
        warm_start: Plan | None = None,
        *,
        fresh: Tensor | None = None,
        generator: Generator | None = None,
        noise: Sequence[Tensor | None] | Tensor | None = None,
        cost: bool = True,
        trace: bool = False,
    ) -> Plan:
        """Plan from state (*B, s).

        Args:
            warm_start: the last plan, to start from: shifted by one step (a latent plan as it is).
            fresh: rows (*B,) that start cold all the same, because their episode is new.
            generator, noise, trace: see `dcem.minimize`.
            cost: also evaluate the plan's cost.
        """
        start = self._start(state, warm_start, fresh)
        sol = minimize(
            lambda x: self._total_cost(x, state),
            self._bounded_solver(),
            start,
            backward=self.backward_mode,
            generator=generator,
            noise=noise,
            cost=cost,
            trace=trace,
        )
        actions = self.decode(sol.x, state)
        return Plan(actions[..., 0, :], actions, sol.cost, sol.x, sol.trace)

    def total_cost(self, x: Tensor, state: Tensor) -> Tensor:
        """What points x (*B, N, n) of the search space cost from state (*B, s): (*B, N)."""
        actions = self.decode(x, state.unsqueeze(-2))
        return sequence_cost(self.model, state, actions, self.discount, self.terminal_cost)

    def decode(self, x: Tensor, state: Tensor) -> Tensor:
        """The action sequences (..., H, m) that points x (..., n) of the search space stand for."""
        if self.decoder is not None:
            return self.decoder(x, state)
        return x.unflatten(-1, (self.horizon, self.action_dim))

    @property
    def search_dim(self) -> int:
        """n, the size of the space that is searched."""
        return self.decoder.latent_dim if self.decoder is not None else self.horizon * self.action_dim

    def _start(self, state: Tensor, warm_start: Plan | None, fresh: Tensor | None) -> Tensor:
        batch = state.shape[:-1]
        if self.decoder is not None:
            cold = state.new_zeros(*batch, self.search_dim)
        else:
            cold = ((self.low + self.high) / 2).to(state).repeat(self.horizon).expand(*batch, -1)
        if warm_start is None:
            return cold
        warm = warm_start.latent.detach()
        if warm.shape != cold.shape:
            raise ValueError(
                f"MPC: warm_start must be a plan for states of shape {tuple(batch)}, "
                f"got one for {tuple(warm.shape[:-1])}"
            )
        if self.decoder is None:
            actions = warm_start.actions.detach()
            warm = torch.cat([actions[..., 1:, :], actions[..., -1:, :]], dim=-2).flatten(-2)
        return warm if fresh is None else torch.where(fresh.unsqueeze(-1), cold, warm)

    def _bounded_solver(self) -> Any:
        """The solver, its distribution bounded by the action box where that is what is searched."""
        distribution = getattr(self.solver, "distribution", None)
        if self.decoder is not None or distribution is None:
            return self.solver
        box = (self.low.repeat(self.horizon), self.high.repeat(self.horizon))
        sigma = distribution.sigma
        if isinstance(sigma, Tensor) and sigma.shape == (self.action_dim,):
            sigma = sigma.repeat(self.horizon)
        return replace(self.solver, distribution=replace(distribution, bounds=box, sigma=sigma))


def _action_dim(
    model: Model,
    low: float | Tensor,
    high: float | Tensor,
    decoder: nn.Module | None,
    given: int | None,
) -> int:
    told: list[int | None] = [given, getattr(decoder, "action_dim", None), getattr(model, "action_dim", None)]
    told += [len(b) for b in (low, high) if isinstance(b, Tensor) and b.ndim == 1]
    dims = {d for d in told if d is not None}
    if len(dims) != 1:
        raise ValueError(
            "MPC: action_dim must be told, by the argument, the model, the decoder or tensors low and high, "
            f"got {sorted(dims) or 'nothing'}"
        )
    return dims.pop()

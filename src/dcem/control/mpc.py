"""Model-predictive control as a differentiable layer."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.utils import _pytree as pytree

from dcem._compile import Program
from dcem._learned import learned, register_settings, resolved
from dcem._minimize import fixed_noise, minimize
from dcem.backward import Backward, Unroll
from dcem.control.rollout import Model, as_model, sequence_cost
from dcem.distributions.box import Bound, Box, as_bound
from dcem.solvers import DCEM, Record, Solver


class Plan(NamedTuple):
    """What the controller intends."""

    action: Tensor  # (*B, m), to apply now
    actions: Tensor  # (*B, H, m), the whole sequence
    cost: Tensor | None  # (*B,), what the model says the sequence costs; None when not asked for
    latent: Tensor  # (*B, n), the optimiser's answer: z with a decoder, else the actions in a row
    trace: tuple[Record, ...] | None = None  # one record an iteration of the solver, when asked for


class MPC(nn.Module):
    """Plans action sequences that minimise the cost a model predicts; gradients reach all it is made of.

        û = argmin_u Σ_t γ^t C(x_t, u_t)  with  x_{t+1} = f(x_t, u_t),   or over z with u = decoder(z)

    Learned settings of the solver (a `Parameter`, `dcem.Positive`) are among the layer's parameters.

    Args:
        model: anything with `step(state, action) -> (next_state, cost)`, or such a function; see
            `dcem.control.Model`. A module's parameters become parameters of this one.
        horizon: H, steps to look ahead.
        low, high: the action box; numbers, tensors or arrays (m,), as of a Gymnasium action space. None: the
            decoder's, else -1 and 1. Planned actions are always inside.
        solver: any solver of `dcem`, by default `DCEM()`. Without a decoder it searches inside the action
            box, from a first spread of half the box where its distribution names none. Bounds of its own
            must be the same.
        decoder: a `Decoder`, or a module with the same `latent_dim`, `horizon`, `action_dim` and `forward`,
            which maps a latent space to action sequences: the search is then over z, within the bounds (if
            any) of the solver's own distribution.
        action_dim: m, where neither the bounds nor the model's `action_dim` tell.
        discount: γ, weight γ^t for the cost of step t.
        value: state (..., s) -> what the time after the last step is worth (...): γ^H value(x_H) is
            subtracted from the cost. A module's parameters become parameters of this one.
        terminal_cost: the same, as a cost that is added.
        backward: how to differentiate a plan, see `dcem.backward`.
        compile: run compiled, slow to start and then faster: on the CPU the whole search, as `dcem.capture`
            does it, and elsewhere the objective (decoder, rollout) by torch.compile.
        seed: in evaluation mode, `mpc.eval()`, plan with the noise of this seed, the same in every call and
            for every row. None: new noise.

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
        model: Model | Callable[[Any, Tensor], tuple[Any, Tensor]],
        horizon: int,
        low: Bound | None = None,
        high: Bound | None = None,
        solver: Solver | None = None,
        decoder: nn.Module | None = None,
        action_dim: int | None = None,
        discount: float = 1.0,
        value: Callable[[Any], Tensor] | None = None,
        terminal_cost: Callable[[Any], Tensor] | None = None,
        backward: Backward = Unroll(),  # noqa: B008 (immutable)
        compile: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(horizon, int) or horizon < 1:
            raise ValueError(f"MPC: horizon must be a positive integer, got {horizon!r}")
        if not 0 < discount <= 1:
            raise ValueError(f"MPC: discount must satisfy 0 < discount <= 1, got {discount}")
        if value is not None and terminal_cost is not None:
            raise ValueError("MPC: value and terminal_cost say the same with another sign: give one of them")
        if solver is not None and not isinstance(solver, Solver):
            raise TypeError(f"MPC: solver must be a solver such as DCEM(), got {solver!r}")
        self.decoder: Any = decoder
        if decoder is not None and decoder.horizon != horizon:
            raise ValueError(f"MPC: the decoder's horizon must be {horizon}, got {decoder.horizon}")
        self.model, self.horizon, self.discount = model, horizon, discount
        self.value, self.terminal_cost, self.backward_mode, self.seed = value, terminal_cost, backward, seed
        low, high = self._bounds(low, high)
        self.action_dim = _action_dim(model, low, high, decoder, action_dim)
        self.register_buffer("low", _as_vector(low, self.action_dim, "low"))
        self.register_buffer("high", _as_vector(high, self.action_dim, "high"))
        if not (self.low < self.high).all():
            raise ValueError(f"MPC: bounds must satisfy low < high everywhere, got low={low}, high={high}")
        self.solver: Any = DCEM() if solver is None else solver
        register_settings(self, self.solver)
        self._searching = self._made_once()
        self._program = Program() if compile else None
        self._fused = torch.compile(self.total_cost, dynamic=False) if compile else self.total_cost

    def forward(
        self,
        state: Any,
        warm_start: Plan | None = None,
        *,
        fresh: Tensor | None = None,
        generator: Generator | None = None,
        noise: Sequence[Tensor | None] | Tensor | None = None,
        cost: bool = True,
        trace: bool = False,
    ) -> Plan:
        """Plan from a state (*B, s), or a nesting of tensors (B, ...), each with the batch first.

        Args:
            warm_start: the last plan, to start from: shifted by one step (a latent plan as it is).
            fresh: rows (*B,) that start cold all the same, because their episode is new.
            generator, noise, trace: see `dcem.minimize`.
            cost: also evaluate the plan's cost.
        """
        state = pytree.tree_map(self._as_tensor, state)
        start = self._start(state, warm_start, fresh)
        solver = self._searching or self._inside_the_box()
        if noise is None and generator is None and self.seed is not None and not self.training:
            noise = fixed_noise(solver, start, self.seed)
        objective = self.total_cost if start.device.type == "cpu" else self._fused
        with self._program() if self._program is not None else nullcontext():
            sol = minimize(
                lambda x: objective(x, state),
                solver,
                start,
                backward=self.backward_mode,
                generator=generator,
                noise=noise,
                cost=cost,
                trace=trace,
            )
        actions = self.decode(sol.x, state)
        return Plan(actions[..., 0, :], actions, sol.cost, sol.x, sol.trace)

    def total_cost(self, x: Tensor, state: Any) -> Tensor:
        """What points x (*B, N, n) of the search space cost from state (*B, s): (*B, N)."""
        actions = self.decode(x, _at_candidates(state, x))
        terminal = self.terminal_cost if self.value is None else lambda last: -self.value(last)  # type: ignore[misc]
        return sequence_cost(as_model(self.model), state, actions, self.discount, terminal)

    def decode(self, x: Tensor, state: Any) -> Tensor:
        """The action sequences (..., H, m) that points x (..., n) of the search space stand for."""
        if self.decoder is not None:
            return self.decoder(x, state)
        actions = x.unflatten(-1, (self.horizon, self.action_dim))
        if self._clamps:
            return actions.clamp(self.low.to(actions), self.high.to(actions))
        return actions

    @property
    def search_dim(self) -> int:
        """n, the size of the space that is searched."""
        return self.decoder.latent_dim if self.decoder is not None else self.horizon * self.action_dim

    def _bounds(self, low: Bound | None, high: Bound | None) -> tuple[float | Tensor, float | Tensor]:
        """The action box; a decoder's must lie inside."""
        theirs = [getattr(self.decoder, name, None) for name in ("low", "high")]
        chosen = []
        for name, given, own, usual in (("low", low, theirs[0], -1.0), ("high", high, theirs[1], 1.0)):
            if given is None:
                chosen.append(usual if own is None else own.detach().clone())
                continue
            bound = as_bound(given)
            if own is not None:
                outside = own < torch.as_tensor(bound) if name == "low" else own > torch.as_tensor(bound)
                if outside.any():
                    raise ValueError(
                        f"MPC: {name} must be left out or hold the decoder's actions, whose {name} is "
                        f"{own.tolist()}, got {given}"
                    )
            chosen.append(bound)
        return chosen[0], chosen[1]

    def _inside_the_box(self) -> Solver:
        """The solver on the action box, where that is what is searched."""
        if self.decoder is not None:
            return self.solver
        return resolved(self.solver).within(Box(self.low, self.high), self.horizon)

    def _made_once(self) -> Solver | None:
        """The solver for all plans; None where settings are learned, whose graph is made for each."""
        solver = self._inside_the_box()
        self._clamps = self.decoder is None and solver.box is None
        return None if any(learned(self.solver)) else solver

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "MPC":
        """Move to another device or dtype, and the solver's bounds along."""
        super()._apply(fn, recurse)
        self._searching = self._made_once()
        return self

    def _as_tensor(self, part: Any) -> Any:
        """A part of a state: tensors as they are, arrays and numbers as tensors like the bounds."""
        return part if isinstance(part, Tensor) else torch.as_tensor(part).to(self.low)

    def _start(self, state: Any, warm_start: Plan | None, fresh: Tensor | None) -> Tensor:
        batch, like = batch_of(state)
        if self.decoder is not None:
            cold = like.new_zeros(*batch, self.search_dim)
        else:
            low, high = self.low.to(like), self.high.to(like)
            centre = torch.where(low.isfinite() & high.isfinite(), low / 2 + high / 2, 0.0).clamp(low, high)
            cold = centre.repeat(self.horizon).expand(*batch, -1)
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


def batch_of(state: Any) -> tuple[torch.Size, Tensor]:
    """*B of a state, and a floating-point tensor of it: all but the last dimension of a tensor, the first one
    of a nesting."""
    leaves = pytree.tree_leaves(state)
    floats = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not floats or any(leaf.ndim == 0 for leaf in floats):
        raise ValueError("MPC: state must hold a floating-point tensor with at least one dimension")
    return (state.shape[:-1] if isinstance(state, Tensor) else floats[0].shape[:1]), floats[0]


def _at_candidates(state: Any, x: Tensor) -> Any:
    """A state (*B, ...) with a dimension for the candidates, (*B, 1, ...)."""
    return pytree.tree_map(lambda part: part.unsqueeze(x.ndim - 2), state)


def _as_vector(bound: float | Tensor, size: int, name: str) -> Tensor:
    vector = torch.as_tensor(bound, dtype=torch.get_default_dtype())
    if vector.shape not in ((), (1,), (size,)):
        raise ValueError(f"MPC: {name} must be a number or have shape ({size},), got {tuple(vector.shape)}")
    return vector.expand(size).clone()


def _action_dim(
    model: Any,
    low: float | Tensor,
    high: float | Tensor,
    decoder: Any,
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

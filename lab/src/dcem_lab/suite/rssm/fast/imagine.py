"""Imagined rollouts of an RSSM whose transition is not being trained, with gradients for the actions.

Learning a decoder differentiates through many rollouts of a frozen model. That saves half of the backward
pass, and the rest is written by hand:

- A rollout stores only its states. From them, the backward pass recomputes the inside of every step. On a
  CUDA device this is done for all steps at once: a few large matrix products, where the rollout itself needs
  a chain.
- Rewards and terminations are not fed back, so their heads process all steps at once as well.
- On a CUDA device and in half precision, rolling out is one kernel (`rollout_triton.py`).

The reference is `RSSM.step`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional as F

from dcem_lab.suite.rssm.fast.engine import Imagination, Weights, last_states, total_cost
from dcem_lab.suite.rssm.fast.gradients import layer_gradients
from dcem_lab.suite.rssm.fast.unroll import inner_layers, kernels_between_products
from dcem_lab.suite.rssm.model import RSSM
from dcem_lab.suite.rssm.nets import ACTIVATIONS, BACKWARD, network

try:
    from dcem_lab.suite.rssm.fast import rollout_triton as rssm_triton
except ImportError:  # Triton is not installed
    rssm_triton = None  # type: ignore[assignment]


IN_CACHE = 1024
"""Trajectories per batch on a CPU: more do not fit in its cache."""


class FrozenRollout(Imagination):
    """A planner's view of an RSSM whose weights and states are constants, in the model's own precision.

    Args:
        model: imagines.
        learn_reward: give the weights of its reward head gradients all the same.
        dtype: float16 to imagine in half precision where there are kernels for that.

    >>> from dcem_lab.suite.rssm import RSSMConfig
    >>> model = RSSM(3, 1, RSSMConfig(hidden=8, width=8))
    >>> actions = torch.zeros(5, 20, 4, 1, requires_grad=True)
    >>> cost = FrozenRollout(model).sequence_cost(torch.zeros(5, model.state_dim), actions)
    >>> cost.shape, torch.autograd.grad(cost.sum(), actions)[0].shape
    (torch.Size([5, 20]), torch.Size([5, 20, 4, 1]))
    """

    def __init__(self, model: RSSM, learn_reward: bool = False, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(model)
        self.learn_reward = learn_reward
        self._engine = fused_rollout(model, dtype) or StepByStep(model)

    def refresh(self) -> None:
        self._engine.refresh()

    def roll_out(
        self, state: Tensor, actions: Tensor, discount: float, ended: bool
    ) -> tuple[Tensor, Tensor | None]:
        model, dtype = self.model, next(self.model.parameters()).dtype
        learned = [
            p if self.learn_reward else p.detach() for layer in model.reward_head.layers for p in layer
        ]
        at_once = len(state) if state.is_cuda else max(1, IN_CACHE // actions.shape[1])
        parts = zip(state.to(dtype).split(at_once), actions.to(dtype).split(at_once), strict=True)
        imagined = [_Imagined.apply(model, self._engine, ended, *part, *learned) for part in parts]
        rewards, logits = (torch.cat([found[i] for found in imagined], dim=-1) for i in range(2))
        ends = torch.cat([found[2] for found in imagined]) if ended else None
        if model.config.termination:
            going_on = _going_on(model, state.to(dtype), logits)
            rewards = rewards * going_on[:, :-1]
            if ends is not None:
                ends = torch.cat([ends, going_on[:, -1].T.unsqueeze(-1)], dim=-1)
        return total_cost(model, rewards, discount), ends


def _going_on(model: RSSM, start: Tensor, logits: Tensor) -> Tensor:
    """The probability (M, T + 1, E · N) that the episode goes on before each step from states (E, s), and
    behind the last one. What a step that ends it earns does count."""
    first = model.members(start)[..., -1].T  # (M, E)
    first = first.repeat_interleave(logits.shape[-1] // len(start), dim=1).unsqueeze(1)
    return first * F.pad(F.logsigmoid(-logits), (0, 0, 1, 0)).cumsum(dim=1).exp()


def fused_rollout(model: RSSM, dtype: torch.dtype) -> "rssm_triton.FusedRollout | None":
    """Kernels that imagine in that precision, where there are some for this model and its device."""
    if dtype != torch.float16 or not next(model.parameters()).is_cuda or rssm_triton is None:
        return None
    return rssm_triton.FusedRollout(model) if rssm_triton.fits(model) else None


class StepByStep:
    """Rolls out any model on any device, with its own weights: what `FusedRollout` does in kernels."""

    def __init__(self, model: RSSM) -> None:
        self.model, self.hidden = model, model.config.hidden

    def refresh(self) -> None:
        """Nothing to do: it reads the model's own weights."""

    @torch.no_grad()
    def weights(self) -> Weights:
        """The weights it rolls out with."""
        model, gru, X = self.model, self.model.gru, self.model.features
        # Rows of [h, x, u] that start at multiples of 16 bytes are read faster.
        spare = -(model.config.hidden + X + model.action_dim) % 4
        rest = model.action_dim + spare
        observation, reward, termination = (
            head.layers if head is not None else []
            for head in (model.observation_head, model.reward_head, model.termination_head)
        )
        weight, bias = observation[-1]
        observation[-1] = F.pad(weight[..., :X], (0, rest)), F.pad(bias[..., :X], (0, rest))
        for head in (reward, termination):
            if head:
                weight, bias = head[0]
                head[0] = F.pad(weight, (0, 0, 0, rest)), bias
        inputs = F.pad(gru.input_weight, (0, 0, 0, spare))
        return Weights(gru.hidden_weight, inputs, gru.bias, observation, reward, termination)

    def imagine(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """States (E, s) and actions (E, N, T, m) → rows (M, T + 1, R, H + P) and rewards (M, T, R).

        R is at least E · N, and H may be rounded up.
        """
        model, weights, do = self.model, self.weights(), kernels_between_products(state)
        activate = ACTIVATIONS[model.config.activation]
        members, H, P = model.config.members, model.config.hidden, weights.inputs.shape[1]
        X, S = model.features, H + model.features
        by_time = actions.flatten(0, 1).transpose(0, 1)
        T, R, U = by_time.shape
        rows = state.new_zeros(members, T + 1, R, H + P)
        begin = state.view(-1, members, 1, model.member_dim)[..., :S].transpose(0, 1)
        rows[:, 0, :, :S] = begin.expand(-1, -1, actions.shape[1], -1).flatten(1, 2)
        rows[:, :T, :, S : S + U] = by_time
        gates = state.new_empty(members, R, 4 * H)
        for t in range(T):
            here, following = rows[:, t], rows[:, t + 1]
            prepared = do.prepare(gates, here[..., H:], weights.inputs, weights.gates)
            h, x = following[..., :H], following[..., H:S]
            do.advance(gates, prepared, here[..., :H], weights.hidden, weights.gates, out=h)
            out = network(h, weights.observation, activate)[..., :X]
            x.copy_(here[..., H:S] + out if model.config.residual else out)
        rewards = network(rows[:, 1:].flatten(1, 2), weights.reward, activate)
        return rows, rewards.view(members, T, R)


class _Imagined(Function):
    """States (E, s), actions (E, N, T, m) and the reward head's parameters → rewards (M, T, E · N).

    Beside them the termination head's logits of the same shape, of no rows without such a head, and where
    ``ended`` the last [h, x] (E · N, M, H + X), else None.
    """

    @staticmethod
    def forward(
        ctx: Any, model: RSSM, engine: Any, ended: bool, state: Tensor, actions: Tensor, *learned: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        rows, rewards = engine.imagine(state, actions)
        logits = rewards[:, :0]
        if model.termination_head is not None:
            head, activate = engine.weights().termination, ACTIVATIONS[model.config.activation]
            logits = network(rows[:, 1:].flatten(1, 2), head, activate).view_as(rewards)
        ctx.model, ctx.engine, ctx.shape = model, engine, actions.shape
        ctx.save_for_backward(rows, *learned)  # these, so that a change to them in between is noticed
        n = actions.shape[0] * actions.shape[1]
        ends = last_states(model, rows[:, -1, :n], engine.hidden, state.dtype) if ended else None
        return rewards[..., :n], logits[..., :n], ends

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor, grad_logits: Tensor, grad_ends: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        rows = ctx.saved_tensors[0]
        model: RSSM = ctx.model
        weights: Weights = ctx.engine.weights()
        X, U, n = model.features, model.action_dim, ctx.shape[0] * ctx.shape[1]
        H = weights.hidden.shape[1]
        both = torch.cat([grad, grad_logits], dim=1)
        # Half precision has a narrow range: scale every trajectory's gradient to its middle.
        size = both.abs().amax(dim=(0, 1))
        if grad_ends is not None:
            size = torch.maximum(size, grad_ends.abs().amax(dim=(1, 2)).to(size))
        size = F.pad(size, (0, rows.shape[2] - n)).clamp_min(torch.finfo(grad.dtype).tiny)
        both = F.pad(both, (0, rows.shape[2] - n)) / size
        of_rewards, of_logits = both.tensor_split([grad.shape[1]], dim=1)
        wanted = ctx.needs_input_grad[5:]
        to_rows, to_head = _through_head(model, weights, weights.reward, rows, of_rewards, size, wanted)
        if weights.termination:
            to_rows += _through_head(model, weights, weights.termination, rows, of_logits, size)[0]
        if not ctx.needs_input_grad[4]:
            return None, None, None, None, None, *to_head
        if grad_ends is not None:
            ends = (grad_ends.transpose(0, 1) / size[:n, None]).to(rows.dtype)
            hidden = model.config.hidden
            to_rows[:, -1, :n, :hidden] += ends[..., :hidden]
            to_rows[:, -1, :n, H : H + X] += ends[..., hidden:]
        by_row = _through_steps(model, weights, rows, to_rows)[..., H + X : H + X + U]
        by_time = by_row.sum(dim=0, dtype=grad.dtype) * size.unsqueeze(-1)
        return None, None, None, None, by_time[:, :n].transpose(0, 1).reshape(ctx.shape), *to_head


def _through_head(
    model: RSSM,
    weights: Weights,
    head: list[tuple[Tensor, Tensor]],
    rows: Tensor,
    grad: Tensor,
    size: Tensor,
    wanted: tuple[bool, ...] = (),
) -> tuple[Tensor, list[Tensor | None]]:
    """Gradients of the rows (M, T + 1, R, H + P), and of the reward head's parameters where wanted.

    Those of what the head says, ``grad`` (M, T, R), are divided by ``size`` (R,); so are those of the rows.
    """
    activation = model.config.activation
    layers = [rows[:, 1:].flatten(1, 2)]
    befores = inner_layers(layers, head, activation)
    layer = grad.flatten(1).unsqueeze(-1).to(rows.dtype)
    to_rows, to_head = torch.empty_like(rows), list[Tensor | None]()
    to_rows[:, 0] = 0
    for i in reversed(range(len(head))):
        if any(wanted):
            true = layer.to(size.dtype) * size.repeat(grad.shape[1]).unsqueeze(-1)
            found = layer_gradients(layers[i].to(size.dtype), true)
            to_head[:0] = [*_unpadded(model, i, *found, weights.hidden.shape[1])]
        if i == 0:
            torch.bmm(layer, head[0][0].mT, out=to_rows[:, 1:].flatten(1, 2))
        else:
            layer = layer @ head[i][0].mT
            layer = BACKWARD[activation](layer, befores[i - 1], torch.empty_like(layer))
    return to_rows, to_head or [None] * len(wanted)


def _unpadded(model: RSSM, i: int, weight: Tensor, bias: Tensor, H: int) -> tuple[Tensor, Tensor]:
    """The gradients of weight and bias i of the reward head, in the shapes of the model's own."""
    shape = model.reward_head.weights[i].shape
    if i == 0:
        weight = torch.cat([weight[:, : model.config.hidden], weight[:, H : H + model.features]], dim=1)
    return weight[:, : shape[1], : shape[2]], bias[:, : shape[2]]


def _through_steps(model: RSSM, weights: Weights, rows: Tensor, grad: Tensor) -> Tensor:
    """Adds to the gradients of the rows (M, T + 1, R, H + P) what comes to them from later ones; [:, :T]."""
    do = kernels_between_products(rows)
    (H, X), T = (weights.hidden.shape[1], model.features), rows.shape[1] - 1
    backward = BACKWARD[model.config.activation]
    # All of [h, x, u] gets its gradient from all gates in one product: h feeds the first three of them.
    to_rows = rows.new_zeros(len(rows), 4 * H, rows.shape[-1])
    to_rows[:, : 3 * H, :H] = weights.hidden.mT
    to_rows[:, H:, H:] = weights.inputs.mT
    # On a CPU, go step by step here too: recomputed data then stays in the cache.
    block = T if rows.is_cuda else 1
    for start in reversed(range(0, T, block)):
        gates, grad_gates, befores = _inside(model, weights, rows[:, start : start + block + 1])
        for t in reversed(range(block)):
            above, below = grad[:, start + t + 1], grad[:, start + t]
            layer = above[..., H:]
            for i in reversed(range(len(befores))):
                layer = layer @ weights.observation[i + 1][0].mT
                layer = backward(layer, befores[i][:, t], torch.empty_like(layer))
            above[..., :H].baddbmm_(layer, weights.observation[0][0].mT)
            hidden = rows[:, start + t, :, :H]
            do.retreat(grad_gates[:, t], gates[:, t], hidden, above[..., :H], below[..., :H])
            below.baddbmm_(grad_gates[:, t].flatten(-2), to_rows)
            if model.config.residual:
                below[..., H : H + X] += above[..., H : H + X]
    return grad[:, :T]


def _inside(model: RSSM, weights: Weights, rows: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Intermediate results of steps: gates (M, T, R, 4H), their slopes, the head's pre-activations."""
    do = kernels_between_products(rows)
    (members, later, R, _), H = rows.shape, weights.hidden.shape[1]
    steps = later - 1, R
    before, after = rows[:, :-1].flatten(1, 2), rows[:, 1:].flatten(1, 2)[..., :H]
    hidden, inputs = before[..., :H], before[..., H:]
    gates = rows.new_empty(members, steps[0] * R, 4 * H)
    prepared = do.prepare(gates, inputs, weights.inputs, weights.gates)
    do.advance(gates, prepared, hidden, weights.hidden, weights.gates, out=torch.empty_like(hidden))
    befores = inner_layers([after], weights.observation, model.config.activation)
    found = gates, do.slopes(gates, hidden), *befores
    gates, slopes, *befores = (x.unflatten(1, steps) for x in found)
    return gates, slopes, befores

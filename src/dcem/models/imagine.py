"""Imagined rollouts of an RSSM whose transition is not being trained, with gradients for the actions.

Learning a decoder differentiates through many rollouts of a model that stays as it is. That leaves out half
of the backward pass, and what is left is written by hand, as in `dcem.models.unroll`: all that a step needs
later is in long buffers, and what lies between two matrix products is one kernel on a CUDA device. Rewards
feed nothing back, so their head takes all steps at once. The oracle is `dcem.models.rssm.RSSM.step`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional as F

from dcem.models.nets import ACTIVATIONS
from dcem.models.rssm import RSSM
from dcem.models.unroll import kernels_between_products


class FrozenRollout:
    """A planner's view of an RSSM whose weights and states are constants: see `dcem.control.Model`.

    Args:
        model: imagines.
        learn_reward: give the weights of its reward head gradients all the same.

    >>> from dcem.models import RSSMConfig
    >>> model = RSSM(3, 1, RSSMConfig(hidden=8, width=8))
    >>> actions = torch.zeros(5, 20, 4, 1, requires_grad=True)
    >>> cost = FrozenRollout(model).sequence_cost(torch.zeros(5, model.state_dim), actions)
    >>> cost.shape, torch.autograd.grad(cost.sum(), actions)[0].shape
    (torch.Size([5, 20]), torch.Size([5, 20, 4, 1]))
    """

    def __init__(self, model: RSSM, learn_reward: bool = False) -> None:
        self.model, self.action_dim, self.learn_reward = model, model.action_dim, learn_reward

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """One step, as the model itself takes it."""
        return self.model.step(state, action)

    def sequence_cost(
        self, state: Tensor, actions: Tensor, discount: float = 1.0, terminal_cost: None = None
    ) -> Tensor:
        """Total cost (*B, N) of actions (*B, N, H, m) from states (*B, s); no discount or terminal cost."""
        model, members = self.model, self.model.config.members
        if discount != 1 or terminal_cost is not None:
            raise ValueError("sequence_cost: discount and terminal_cost need a model that goes step by step")
        *batch, _, horizon, action_dim = actions.shape
        if action_dim != model.action_dim or state.shape != (*batch, model.state_dim):
            raise ValueError(
                f"sequence_cost: state must be (*B, {model.state_dim}) and actions (*B, N, H, "
                f"{model.action_dim}), got {tuple(state.shape)} and {tuple(actions.shape)}"
            )
        start = state.reshape(-1, members, 1, model.member_dim).transpose(0, 1)
        start = start.expand(-1, -1, actions.shape[-3], -1).flatten(1, 2)
        by_time = actions.flatten(0, -3).transpose(0, 1)
        states: Tensor = _Imagined.apply(model, start, by_time)
        head, x = model.reward_head, states.flatten(1, 2)
        activate = ACTIVATIONS[head.activation].apply
        for i, (weight, bias) in enumerate(zip(head.weights, head.biases, strict=True)):
            if not self.learn_reward:
                weight, bias = weight.detach(), bias.detach()
            x = torch.baddbmm(bias.unsqueeze(1), x if i == 0 else activate(x), weight)
        cost = model.cost(x.squeeze(-1)).unflatten(0, (horizon, -1)).sum(dim=0)
        return cost.reshape(actions.shape[:-2])


class _Imagined(Function):
    """[h, x] (M, R, H + X) and actions (T, R, U) → the states [h, x] (M, T, R, H + X) after every action."""

    @staticmethod
    def forward(ctx: Any, model: RSSM, start: Tensor, actions: Tensor) -> Tensor:
        config, gru, head = model.config, model.gru, model.observation_head
        do = kernels_between_products(start)
        (members, rows, S), (T, _, U), H = start.shape, actions.shape, config.hidden
        weights, biases = _means_only(model)
        states = start.new_zeros(members, T + 1, rows, S + U + _spare(model))
        gates = start.new_empty(members, T, rows, 4 * H)
        befores = [start.new_empty(members, T, rows, w.shape[-1]) for w in weights[:-1]]
        states[:, 0, :, :S] = start
        states[:, :T, :, S : S + U] = actions
        input_weight = _input_weight(model)
        for t in range(T):
            here, following = states[:, t], states[:, t + 1]
            prepared = do.prepare(gates[:, t], here[..., H:], input_weight, gru.bias)
            h, x = following[..., :H], following[..., H:S]
            do.advance(gates[:, t], prepared, here[..., :H], gru.hidden_weight, gru.bias, out=h)
            layer = h
            for i, before in enumerate(befores):
                activated = torch.empty_like(before[:, t])
                do.layer(layer, weights[i], biases[i], head.activation, before[:, t], activated)
                layer = activated
            out = torch.baddbmm(biases[-1].unsqueeze(1), layer, weights[-1])
            if config.residual:
                torch.add(here[..., H:S], out, out=x)
            else:
                x.copy_(out)
        ctx.model = model
        ctx.save_for_backward(states, gates, *befores)
        return states[:, 1:, :, :S]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_states: Tensor) -> tuple[Tensor | None, ...]:
        states, gates, *befores = ctx.saved_tensors
        model: RSSM = ctx.model
        do, gru = kernels_between_products(states), model.gru
        backward = ACTIVATIONS[model.observation_head.activation].backward
        _, T, rows, S = grad_states.shape
        H, X, U = model.config.hidden, model.features, model.action_dim
        to_hidden, to_inputs = gru.hidden_weight.detach().mT, _input_weight(model).mT
        weights = [w.mT for w in _means_only(model)[0]]
        grad_actions = states.new_empty(T, rows, U)
        grad = torch.empty_like(states[:, 1:])[..., :S].copy_(grad_states)
        for t in reversed(range(T)):
            grad_h, grad_x = grad[:, t, :, :H], grad[:, t, :, H:]
            layer = grad_x
            for i in reversed(range(len(befores))):
                before = befores[i][:, t]
                layer = backward(layer @ weights[i + 1], before, torch.empty_like(before))
            grad_h.baddbmm_(layer, weights[0])
            hidden, below_h = states[:, t, :, :H], grad[:, t - 1, :, :H] if t > 0 else None
            grad_gates = do.slopes(gates[:, t], hidden)
            do.retreat(grad_gates, gates[:, t], hidden, grad_h, below_h)
            of_gates = grad_gates.flatten(-2)
            of_inputs = of_gates[..., H:] @ to_inputs
            torch.sum(of_inputs[..., X : X + U], dim=0, out=grad_actions[t])
            if below_h is not None:
                below_h.baddbmm_(of_gates[..., : 3 * H], to_hidden)
                below_x = grad[:, t - 1, :, H:]
                below_x += of_inputs[..., :X]
                if model.config.residual:
                    below_x += grad_x
        return None, None, grad_actions


def _spare(model: RSSM) -> int:
    """Columns of zeros that let rows of [h, x, u] start at multiples of 16 bytes: they are read faster."""
    return -(model.member_dim + model.action_dim) % 4


def _input_weight(model: RSSM) -> Tensor:
    return F.pad(model.gru.input_weight.detach(), (0, 0, 0, _spare(model)))


def _means_only(model: RSSM) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and biases of the observation head, without the outputs that are standard deviations."""
    head, X = model.observation_head, model.features
    weights, biases = [w.detach() for w in head.weights], [b.detach() for b in head.biases]
    return [*weights[:-1], weights[-1][..., :X]], [*biases[:-1], biases[-1][..., :X]]

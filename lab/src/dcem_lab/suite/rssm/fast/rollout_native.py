"""Planning on a CPU in C++.

A plan is thousands of small matrix products, each too short to split between threads. Instead, each thread
takes some trajectories of a member through all their steps. Weights are packed in advance for the vector
units of the CPU, in float32 or bfloat16. Everything else stays in float32.

The references are `RSSM.step` and `Guide.worth`.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dcem_lab.suite.rssm.fast import native
from dcem_lab.suite.rssm.fast.engine import Imagination, total_cost
from dcem_lab.suite.rssm.model import RSSM

_FUNCTIONS = {"relu": 1, "elu": 2, "gelu": 3}
_POINTER, _LONG = ctypes.c_void_p, ctypes.c_int64
_ALONE = 500_000  # multiplications below which one thread finishes before others have started


class _Layer(ctypes.Structure):
    _fields_ = [
        ("inputs", _LONG), ("outputs", _LONG), ("in_pairs", _LONG), ("weight", _POINTER), ("bias", _POINTER)
    ]  # fmt: skip


def _padded(x: Tensor) -> Tensor:
    """Columns rounded up to whole panels, with zeros."""
    return F.pad(x, (0, -x.shape[-1] % native.library().lanes_in_panel()))


def _packed(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """(M, in, out) → (M, panels, in, columns of a panel), or in bfloat16 (M, panels, in / 2, columns, 2)."""
    panels = _padded(weight).unflatten(-1, (-1, native.library().lanes_in_panel())).transpose(1, 2)
    if dtype == torch.float32:
        return panels.contiguous()
    if not native.library().has_bfloat16():
        raise ValueError(f"dtype must be float32 on a CPU without instructions for bfloat16, got {dtype}")
    pairs = F.pad(panels, (0, 0, 0, panels.shape[2] % 2)).unflatten(2, (-1, 2))
    return pairs.transpose(-1, -2).to(dtype).contiguous()


class _Packed:
    """Weights as the kernels read them. A copy and a pickle pack them again: pointers cannot be copied."""

    def refresh(self) -> None:
        """Take the weights again."""
        raise NotImplementedError

    def pack(self, layers: list[tuple[Tensor, Tensor]], dtypes: list[torch.dtype]) -> None:
        """Fully connected layers, weights (M, in, out) and biases (M, out), and the precision of products."""
        self._layers = (_Layer * len(layers))()
        self._held: list[Tensor] = []  # what the layers point to
        for i, ((weight, bias), dtype) in enumerate(zip(layers, dtypes, strict=True)):
            packed, padded = _packed(weight.detach(), dtype), _padded(bias.detach()).contiguous()
            self._held += [packed, padded]
            in_pairs = dtype == torch.bfloat16
            self._layers[i] = _Layer(*weight.shape[1:], in_pairs, packed.data_ptr(), padded.data_ptr())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_layers", "_held")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.refresh()


class NativeRollout(_Packed, Imagination):
    """A planner's view of an RSSM on the CPU, without gradients. The weights are copies.

    Args:
        model: imagines, and knows no end.
        dtype: of the products, float32 or bfloat16.
    """

    def __init__(self, model: RSSM, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(model)
        self._dtype = dtype
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        model, gru, H, X = self.model, self.model.gru, self.model.config.hidden, self.model.features
        hidden, inputs, bias = gru.hidden_weight, gru.input_weight, gru.bias
        gates = torch.cat([hidden[..., H:], inputs[..., : 2 * H]], dim=1)
        observation, reward = model.observation_head.layers, model.reward_head.layers
        observation[-1] = observation[-1][0][..., :X], observation[-1][1][..., :X]
        layers: list[tuple[Tensor, Tensor]] = [
            (gates, bias[..., H : 3 * H]),
            (hidden[..., :H], bias[..., :H]),
            (inputs[..., 2 * H :], bias[..., 3 * H :]),
            *observation,
            *reward,
        ]
        # Do not round the last layer: small differences between rewards are decisive.
        self.pack(layers, [*[self._dtype] * (len(layers) - 1), torch.float32])
        self._heads = len(observation), len(reward)
        self._products = sum(weight[0].numel() for weight, _ in layers)

    @torch.no_grad()
    def roll_out(
        self, state: Tensor, actions: Tensor, discount: float, ended: bool
    ) -> tuple[Tensor, Tensor | None]:
        model, config, (E, N, T, U) = self.model, self.model.config, actions.shape
        state, actions = _read(state), _read(actions)
        rewards = state.new_empty(config.members, T, E * N)
        ends = state.new_empty(E * N, model.state_dim)
        native.library().rollout(
            self._layers, *self._heads, config.members, config.hidden, model.features, U, E, N, T,
            config.residual, _FUNCTIONS[config.activation], state.data_ptr(), actions.data_ptr(),
            rewards.data_ptr(), ends.data_ptr(), _threads(rewards.numel() * self._products),
        )  # fmt: skip
        return total_cost(model, rewards, discount), ends


class NativeJudge(_Packed):
    """What critics say of where plans end, and of the actor's actions there: `Guide.worth` without gradients.

    The weights are copies.

    Args:
        value: critics, of numbers, and actor.
        pessimism: a state is worth the mean − pessimism · standard deviation over critics and members.
        dtype: of the products between hidden layers, float32 or bfloat16.
    """

    def __init__(self, value: Any, pessimism: float, dtype: torch.dtype = torch.float32) -> None:
        self._value, self._pessimism, self._dtype = value, pessimism, dtype
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        layers = [*self._value.actor.net.layers, *self._value.critics.layers]
        inner = [self._dtype] * (len(layers) // 2 - 2)
        self.pack(layers, [torch.float32, *inner, torch.float32] * 2)
        self._products = sum(weight.numel() for weight, _ in layers)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Observations (..., M, X) → what they are worth (...), in units of the reward."""
        settings, x = self._value.settings, _read(x)
        K, X, rows = settings["critics"], x.shape[-1], x[..., 0].numel()
        q = x.new_empty(*x.shape[:-2], x.shape[-2] * K)
        half = len(self._layers) // 2
        native.library().judge(
            self._layers, half, half, K, X, settings["action_dim"], rows,
            x.data_ptr(), q.data_ptr(), _threads(rows * self._products),
        )  # fmt: skip
        q /= self._value.reward_scale
        if self._pessimism == 0:
            return q.mean(dim=-1)
        deviation, mean = torch.std_mean(q, dim=-1, correction=0)
        return mean - self._pessimism * deviation


def _read(x: Tensor) -> Tensor:
    """As the kernels read it, whatever its precision: they know addresses only."""
    return x.to("cpu", torch.float32).contiguous()


def _threads(products: int) -> int:
    return torch.get_num_threads() if products > _ALONE else 1

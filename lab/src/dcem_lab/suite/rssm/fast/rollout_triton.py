"""Imagined rollouts of an RSSM in three launches, however many steps and samples.

The kernels are in `rollout_kernels.py`; this module has the weights they read and their launch parameters.
The reference is `RSSM.step`.
"""

import math
import os
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.nn import functional as F

from dcem import capture
from dcem_lab.suite.rssm.fast.engine import Imagination, Weights, last_states
from dcem_lab.suite.rssm.fast.rollout_kernels import (
    cost_kernel,
    reward_kernel,
    rollout_kernel,
    team_rollout_kernel,
)
from dcem_lab.suite.rssm.model import RSSM

LEAST, LIMIT = 128, 256  # units of a layer: a block of weights holds all of a unit's inputs
INPUT_LIMIT = 64  # features and actions
TEAMS = os.environ.get("DCEM_TEAMS", "1") != "0"
"""Whether teams may be used. Their programs wait for each other, so set DCEM_TEAMS=0 on a GPU shared by
several processes: two partially started kernels could deadlock."""


class Shape(NamedTuple):
    """How a kernel is launched."""

    tile: int  # rows a program takes
    block: int  # units in a block of the first loop
    block2: int  # and of the second
    warps: int
    stages: int  # blocks of weights under way, one less
    team: bool = False  # programs share a tile, each with `block` units of every layer


Shapes = list[tuple[float, Shape]]
"""By the most rows per multiprocessor that each is for; the first that is for enough is taken."""

# Measured on an H200, GRU and layers of 200 units.
PROCESSORS = 132
ROLLOUT: Shapes = [
    (16, Shape(16, 32, 64, 4, 3)),
    (32, Shape(32, 32, 64, 4, 3)),
    (64, Shape(64, 32, 64, 4, 2)),
    (math.inf, Shape(128, 16, 64, 8, 3)),
]
IN_TEAMS: Shapes = [(4, Shape(16, 64, 0, 8, 2, team=True)), (16, Shape(32, 64, 0, 8, 2, team=True)), *ROLLOUT]
REWARD: Shapes = [
    (16, Shape(16, 32, 0, 4, 3)),
    (64, Shape(64, 32, 0, 4, 3)),
    (math.inf, Shape(128, 64, 0, 8, 2)),
]


def fits(model: RSSM) -> bool:
    """Whether `FusedRollout` supports this model."""
    config, inputs = model.config, model.features + model.action_dim
    units = LEAST <= min(config.hidden, config.width) <= max(config.hidden, config.width) <= LIMIT
    return config.layers == 2 and units and inputs <= INPUT_LIMIT and not config.termination


class FusedRollout(Imagination):
    """A planner's view of an RSSM, in three launches and without gradients.

    `FrozenRollout`, which has gradients, rolls out with it as with `StepByStep`. The weights are copies
    in half precision; `refresh` updates them from the model in place, so that captured graphs see the change.
    """

    def __init__(self, model: RSSM) -> None:
        config, inputs = model.config, model.features + model.action_dim
        if not fits(model):
            raise ValueError(
                f"FusedRollout: model must have 2 layers, {LEAST} to {LIMIT} units in each, at most "
                f"{INPUT_LIMIT} features and actions and no termination head, got {config.layers} layers, "
                f"{config.hidden} hidden units, width {config.width}, {inputs} features and actions, "
                f"termination={config.termination}"
            )
        super().__init__(model)
        self.hidden = H = _round_up(config.hidden)
        W = _round_up(config.width)
        self._sizes: dict[str, Any] = {
            "H": H, "W": W, "ACTIVATION": config.activation,
            "ALL_H": triton.next_power_of_2(max(H, 16)), "ALL_W": triton.next_power_of_2(max(W, 16)),
            "PAD": 32 if inputs <= 32 else 64,  # columns of [x, u], and of the observation head's outputs
        }  # fmt: skip
        self._rollout_weights, self._reward_weights = self._pack()
        self._held = self._rollout_weights + self._reward_weights
        self._take = capture(self._take_anew, changes=self._held)

    def refresh(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            self._take_anew()
        else:
            self._take()

    @torch.no_grad()
    def _take_anew(self) -> None:
        rollout, reward = self._pack()
        torch._foreach_copy_(self._held, rollout + reward)

    @torch.no_grad()
    def roll_out(
        self, state: Tensor, actions: Tensor, discount: float, ended: bool
    ) -> tuple[Tensor, Tensor | None]:
        model, config, n = self.model, self.model.config, actions.shape[0] * actions.shape[1]
        trace, rewards = self._imagine(state, actions, teams=True)
        cost = torch.empty(n, device=state.device)
        with torch.cuda.device(state.device):
            cost_kernel[(triton.cdiv(n, 128),)](
                rewards, cost, n, rewards.shape[-1], actions.shape[2], config.pessimism, discount,
                M=config.members, TILE=128,
            )  # fmt: skip
        return cost, last_states(model, trace[:, -1, :n], self.hidden, state.dtype) if ended else None

    @torch.no_grad()
    def imagine(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """As `StepByStep.imagine`."""
        # No teams: gradients are for training, which runs concurrently with other work. The programs of a
        # team wait for each other, and two partially started kernels could deadlock.
        trace, rewards = self._imagine(state, actions, teams=False)
        hidden, X, H = self.model.config.hidden, self.model.features, self._sizes["H"]
        E, N, T, U = actions.shape
        begin = state.view(E, -1, 1, hidden + X).transpose(0, 1).expand(-1, -1, N, -1).flatten(1, 2)
        trace[:, 0] = 0
        trace[:, 0, : E * N, :hidden] = begin[..., :hidden]
        trace[:, 0, : E * N, H : H + X] = begin[..., hidden:]
        trace[:, :T, : E * N, H + X : H + X + U] = actions.flatten(0, 1).transpose(0, 1)
        return trace, rewards

    def weights(self) -> Weights:
        """As `StepByStep.weights`."""
        hidden, inputs, gates, *observation = self._rollout_weights
        of_h, of_x, *reward = self._reward_weights
        reward = [torch.cat([of_h, of_x], dim=1), *reward]
        reward[4] = reward[4].unsqueeze(-1).to(of_h.dtype)
        return Weights(hidden, inputs, gates, _pairs(observation), _pairs(reward), [])

    def _imagine(self, state: Tensor, actions: Tensor, teams: bool) -> tuple[Tensor, Tensor]:
        """The trace (M, T + 1, R, H + PAD) of actions (*B, N, T, m), and its rewards (M, T, R)."""
        config, model, sizes, device = self.model.config, self.model, self._sizes, state.device
        n_samples, horizon, action_dim = actions.shape[-3:]
        members, rows = config.members, actions.numel() // (horizon * action_dim)
        H, W, PAD = sizes["H"], sizes["W"], sizes["PAD"]
        roll = _shape(IN_TEAMS if teams and TEAMS and PAD == 32 else ROLLOUT, rows * members, PAD)
        head = _shape(REWARD, rows * members * horizon, PAD)
        tiles = triton.cdiv(rows, roll.tile)
        slot_rows = tiles * roll.tile
        trace = torch.empty(members, horizon + 1, slot_rows, H + PAD, dtype=torch.float16, device=device)
        rewards = torch.empty(members, horizon, slot_rows, device=device)
        kernel, team, shared = rollout_kernel, 1, list[Tensor]()
        how = {"BLOCK2": roll.block2, "EARLY": roll.tile < 64}
        if roll.team:  # whose programs pass h and both layers to each other, and count what has arrived
            kernel, team = team_rollout_kernel, triton.cdiv(max(H, W), roll.block)
            layers = torch.empty(members * tiles, 3, roll.tile, max(H, W), dtype=torch.float16, device=device)
            shared = [layers, torch.zeros(members * tiles, 32, dtype=torch.int32, device=device)]
            how = {"TEAM": team}
        with torch.cuda.device(device):
            kernel[team * tiles, members](
                state.float().contiguous(), actions.float().contiguous(), trace, *shared,
                *self._rollout_weights, rows, n_samples, horizon,
                HIDDEN=config.hidden, X=model.features, U=action_dim, RESIDUAL=config.residual,
                TILE=roll.tile, BLOCK=roll.block, num_warps=roll.warps, num_stages=roll.stages,
                **how, **sizes,
            )  # fmt: skip
            reward_kernel[triton.cdiv(horizon * slot_rows, head.tile), members](
                trace, rewards, *self._reward_weights, horizon * slot_rows, slot_rows,
                TILE=head.tile, BLOCK=head.block, num_warps=head.warps, num_stages=head.stages, **sizes,
            )  # fmt: skip
        return trace, rewards

    @torch.no_grad()
    def _pack(self) -> tuple[list[Tensor], list[Tensor]]:
        """The kernels' weights, zero where sizes are rounded up: matrices in float16, biases in float32."""
        model, config = self.model, self.model.config
        H, X, PAD = config.hidden, model.features, self._sizes["PAD"]
        gru, obs, rew = model.gru, model.observation_head, model.reward_head
        up_h, up_w, up_x = _round_up(H) - H, _round_up(config.width) - config.width, PAD - X

        def pad(w: Tensor, columns: int, rows: int = 0) -> Tensor:
            """A copy of matrices (M, rows, columns) or biases (M, columns)."""
            padded = F.pad(w, (0, columns, 0, rows) if w.ndim == 3 else (0, columns))
            dtype = torch.float16 if w.ndim == 3 else torch.float32
            return padded.to(dtype, copy=True, memory_format=torch.contiguous_format)

        def gates(w: Tensor, rows: int = 0) -> Tensor:
            return torch.cat([pad(gate, up_h, rows) for gate in w.split(H, dim=-1)], dim=-1)

        rollout = [
            gates(gru.hidden_weight, up_h), gates(gru.input_weight, up_x - model.action_dim), gates(gru.bias),
            pad(obs.weights[0], up_w, up_h), pad(obs.biases[0], up_w),
            pad(obs.weights[1], up_w, up_w), pad(obs.biases[1], up_w),
            pad(obs.weights[2][..., :X], up_x, up_w), pad(obs.biases[2][..., :X], up_x),
        ]  # fmt: skip
        reward = [
            pad(rew.weights[0][:, :H], up_w, up_h), pad(rew.weights[0][:, H:], up_w, up_x),
            pad(rew.biases[0], up_w),
            pad(rew.weights[1], up_w, up_w), pad(rew.biases[1], up_w),
            pad(rew.weights[2].squeeze(-1), up_w), pad(rew.biases[2], 0),
        ]  # fmt: skip
        return rollout, reward


def _pairs(layers: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(layers[::2], layers[1::2], strict=True))


def _round_up(n: int) -> int:
    """To a multiple of 8: rows of half-precision matrices then start at multiples of 16 bytes."""
    return triton.cdiv(n, 8) * 8


def _shape(shapes: Shapes, rows: int, pad: int) -> Shape:
    """As many rows per program as keep all multiprocessors busy; prefetch as many weights as fit."""
    shape = next(shape for most, shape in shapes if rows <= most * PROCESSORS)
    return shape if pad == 32 else shape._replace(block=16, block2=32)

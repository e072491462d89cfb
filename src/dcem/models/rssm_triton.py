"""Imagined rollouts of an RSSM in three Triton kernels, however many steps and samples. No gradients.

The rollout is a chain of small layers, so its time is that of fetching weights from the L2 cache, again at
every step. What is here follows from that:

- One program takes a tile of trajectories through the whole horizon, alone: no waiting for others.
- A layer whose columns come block by block is at once a factor of the next layer's sum: GRU and first
  layer of the observation head are one loop over the hidden units, second and third layer another. Weights
  are fetched some blocks ahead, and activations stay on the chip.
- Rewards feed nothing back. The states go to a trace, and a second kernel takes the reward head over all
  steps of all trajectories side by side.

Products run on the tensor cores in float16 with float32 sums. The oracle is `dcem.models.rssm.RSSM.step`.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from dcem.models.rssm import RSSM

LIMIT = 256  # units of a layer: a block of weights holds all of a unit's inputs
INPUT_LIMIT = 64  # features and actions


@triton.jit
def _sigmoid(x):
    """1 / (1 + 2^(−x log₂e)) in four instructions; the compiler's own guards every range and takes 14."""
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1; add.f32 $0, $0, 0f3F800000; rcp.approx.ftz.f32 $0, $0;",
        "=f,f",
        [x * -1.4426950408889634],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def _act(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if ACTIVATION == "elu":
        return tl.where(x > 0.0, x, tl.exp(x) - 1.0)
    # The normal distribution function as σ(x p(x²)): within 3e-5 of GELU, at half the price of erf.
    s = tl.minimum(x * x, 36.0)
    return x * _sigmoid(x * (1.5950157634 + s * (0.0740112965 - 0.00070303426 * s)))


@triton.jit
def _tanh(x):
    return 2.0 * _sigmoid(2.0 * x) - 1.0


@triton.jit
def _matrix(pointer, rows, columns, n_rows, n_columns, stride):
    """The rows and columns of a matrix at `pointer`, zero where it has none."""
    inside = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    return tl.load(pointer + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _bias(pointer, columns, n_columns):
    return tl.load(pointer + columns, mask=columns < n_columns, other=0.0)[None, :]


@triton.jit(do_not_specialize=["n_rows", "n_samples", "horizon"])
def _rollout_kernel(
    state_ptr, action_ptr, trace_ptr,
    gru_h_ptr, gru_i_ptr, gru_b_ptr, obs1_ptr, obs1_b_ptr, obs2_ptr, obs2_b_ptr, obs3_ptr, obs3_b_ptr,
    n_rows, n_samples, horizon,
    HIDDEN: tl.constexpr, X: tl.constexpr, U: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr, ALL_H: tl.constexpr, ALL_W: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, BLOCK2: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """States (E, M, HIDDEN + X), actions (rows, horizon, U) → trace of [h, x] (M, horizon + 1, R, H + PAD).

    H and W are HIDDEN and the width, up to a multiple of 8; ALL_H and ALL_W, up to a power of 2; R, the
    rows, up to a multiple of TILE.
    """
    tile, member, members = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = tile * TILE + tl.arange(0, TILE)
    alive = row < n_rows
    k_h = tl.arange(0, ALL_H)
    k_w = tl.arange(0, ALL_W)
    pad = tl.arange(0, PAD)
    is_action = (pad >= X) & (pad < X + U)
    gru_h_ptr += member * H * 3 * H
    gru_i_ptr += member * PAD * 3 * H
    gru_b_ptr += member * 4 * H
    obs1_ptr += member * H * W
    obs2_ptr += member * W * W
    obs3_ptr += member * W * PAD

    STRIDE: tl.constexpr = H + PAD
    slot = tl.num_programs(0) * TILE * STRIDE
    old = trace_ptr + member.to(tl.int64) * (horizon + 1) * slot + row[:, None] * STRIDE
    begin = state_ptr + (tl.where(alive, row // n_samples, 0) * members + member)[:, None] * (HIDDEN + X)
    h = tl.load(begin + k_h[None, :], mask=(k_h < HIDDEN)[None, :], other=0.0).to(tl.float16)
    tl.store(old + k_h[None, :], h, mask=(k_h < H)[None, :])
    x = tl.load(begin + HIDDEN + pad[None, :], mask=(pad < X)[None, :], other=0.0)
    u_ptr = action_ptr + row[:, None] * (horizon * U) + (pad - X)[None, :]
    has_u = alive[:, None] & is_action[None, :]
    u = tl.load(u_ptr, mask=has_u, other=0.0)
    tl.debug_barrier()

    for t in range(horizon):
        new = old + slot
        xu = tl.where(is_action[None, :], u, x).to(tl.float16)
        u = tl.load(u_ptr + (t + 1) * U, mask=has_u & (t + 1 < horizon), other=0.0)

        if not EARLY:
            h = tl.load(old + k_h[None, :], mask=(k_h < H)[None, :], other=0.0)
        first = tl.zeros((TILE, ALL_W), tl.float32)
        for j in range(0, H, BLOCK):
            column = j + tl.arange(0, BLOCK)
            valid = (column < H)[None, :]
            new_h = tl.dot(h, _matrix(gru_h_ptr, k_h, column, H, H, 3 * H))
            reset = tl.dot(h, _matrix(gru_h_ptr + H, k_h, column, H, H, 3 * H))
            update = tl.dot(h, _matrix(gru_h_ptr + 2 * H, k_h, column, H, H, 3 * H))
            reset = tl.dot(xu, _matrix(gru_i_ptr, pad, column, PAD, H, 3 * H), reset)
            update = tl.dot(xu, _matrix(gru_i_ptr + H, pad, column, PAD, H, 3 * H), update)
            new_i = tl.dot(xu, _matrix(gru_i_ptr + 2 * H, pad, column, PAD, H, 3 * H))
            reset = _sigmoid(reset + _bias(gru_b_ptr + H, column, H))
            update = _sigmoid(update + _bias(gru_b_ptr + 2 * H, column, H))
            new_h += _bias(gru_b_ptr, column, H)
            new_i += _bias(gru_b_ptr + 3 * H, column, H)
            candidate = _tanh(new_i + reset * new_h)
            before = tl.load(old + column[None, :], mask=valid, other=0.0).to(tl.float32)
            after = (candidate + update * (before - candidate)).to(tl.float16)
            tl.store(new + column[None, :], after, mask=valid)
            first = tl.dot(after, _matrix(obs1_ptr, column, k_w, H, W, W), first)
        # All of h comes back through the cache for the next step: while the observation head is at work,
        # if there are registers to hold it.
        tl.debug_barrier()
        first_out = _act(first + _bias(obs1_b_ptr + member * W, k_w, W), ACTIVATION).to(tl.float16)
        if EARLY:
            h = tl.load(new + k_h[None, :], mask=(k_h < H)[None, :], other=0.0)
        out = tl.zeros((TILE, PAD), tl.float32)
        for j in range(0, W, BLOCK2):
            column = j + tl.arange(0, BLOCK2)
            second = tl.dot(first_out, _matrix(obs2_ptr, k_w, column, W, W, W))
            second = _act(second + _bias(obs2_b_ptr + member * W, column, W), ACTIVATION)
            out = tl.dot(second.to(tl.float16), _matrix(obs3_ptr, column, pad, W, PAD, PAD), out)
        out += _bias(obs3_b_ptr + member * PAD, pad, PAD)
        x = x + out if RESIDUAL else out
        x = tl.where((pad < X)[None, :], x, 0.0)
        tl.store(new + H + pad[None, :], x.to(tl.float16))
        old = new


@triton.jit(do_not_specialize=["n_slots", "slot_rows"])
def _reward_kernel(
    trace_ptr, reward_ptr,
    rew1_ptr, rew1_x_ptr, rew1_b_ptr, rew2_ptr, rew2_b_ptr, rew3_ptr, rew3_b_ptr,
    n_slots, slot_rows,
    ACTIVATION: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr, ALL_H: tl.constexpr, ALL_W: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rewards (M, n_slots) of a trace (M, slot_rows + n_slots, H + PAD), its first slot_rows left out."""
    tile, member = tl.program_id(0), tl.program_id(1)
    row = tile * TILE + tl.arange(0, TILE)
    alive = row < n_slots
    k_h = tl.arange(0, ALL_H)
    k_w = tl.arange(0, ALL_W)
    pad = tl.arange(0, PAD)
    trace_ptr += (member.to(tl.int64) * (slot_rows + n_slots) + slot_rows) * (H + PAD)
    rew1_ptr += member * H * W
    rew1_x_ptr += member * PAD * W
    rew2_ptr += member * W * W
    h = _matrix(trace_ptr, row, k_h, n_slots, H, H + PAD)
    x = _matrix(trace_ptr + H, row, pad, n_slots, PAD, H + PAD)
    second = tl.zeros((TILE, ALL_W), tl.float32)
    for j in range(0, W, BLOCK):
        column = j + tl.arange(0, BLOCK)
        first = tl.dot(h, _matrix(rew1_ptr, k_h, column, H, W, W))
        first = tl.dot(x, _matrix(rew1_x_ptr, pad, column, PAD, W, W), first)
        first = _act(first + _bias(rew1_b_ptr + member * W, column, W), ACTIVATION)
        second = tl.dot(first.to(tl.float16), _matrix(rew2_ptr, column, k_w, W, W, W), second)
    second = _act(second + _bias(rew2_b_ptr + member * W, k_w, W), ACTIVATION)
    reward = tl.sum(second * _bias(rew3_ptr + member * W, k_w, W), 1) + tl.load(rew3_b_ptr + member)
    tl.store(reward_ptr + member.to(tl.int64) * n_slots + row, reward, mask=alive)


@triton.jit(do_not_specialize=["n_rows", "slot_rows", "horizon", "pessimism"])
def _cost_kernel(
    reward_ptr, cost_ptr, n_rows, slot_rows, horizon, pessimism, M: tl.constexpr, TILE: tl.constexpr
):
    """Σ_t (pessimism · std − mean) over the members' rewards (M, horizon, slot_rows): costs (n_rows,)."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    alive = row < n_rows
    cost = tl.zeros((TILE,), tl.float32)
    for t in range(horizon):
        pointer = reward_ptr + t * slot_rows + row
        mean = tl.zeros((TILE,), tl.float32)
        for m in tl.static_range(M):
            mean += tl.load(pointer + m * horizon * slot_rows, mask=alive, other=0.0) / M
        variance = tl.zeros((TILE,), tl.float32)
        if M > 1:
            for m in tl.static_range(M):
                off = tl.load(pointer + m * horizon * slot_rows, mask=alive, other=0.0) - mean
                variance += off * off / M
        cost += pessimism * tl.sqrt(variance) - mean
    tl.store(cost_ptr + row, cost, mask=alive)


class Shape(NamedTuple):
    """How a kernel is launched."""

    tile: int  # rows a program takes
    block: int  # units in a block of the first loop
    block2: int  # and of the second
    warps: int
    stages: int  # blocks of weights under way, one less


class FusedRollout:
    """A planner's view of an RSSM: `sequence_cost` for whole action sequences, in three launches.

    The weights are copies in half precision; `refresh` takes them anew from the model, in place, so that
    captured graphs see them.
    """

    def __init__(self, model: RSSM) -> None:
        config, inputs = model.config, model.features + model.action_dim
        if config.layers != 2 or max(config.hidden, config.width) > LIMIT or inputs > INPUT_LIMIT:
            raise ValueError(
                f"FusedRollout: model must have 2 layers, at most {LIMIT} units in each and at most "
                f"{INPUT_LIMIT} features and actions, got {config.layers} layers, {config.hidden} hidden "
                f"units, width {config.width}, {inputs} features and actions"
            )
        self.model, self.action_dim = model, model.action_dim
        self._pad = 32 if inputs <= 32 else 64  # columns of [x, u], and of the observation head's outputs
        self._rollout_weights, self._reward_weights = self._pack()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take the weights anew from the model."""
        rollout, reward = self._pack()
        mine = self._rollout_weights + self._reward_weights
        for held, now in zip(mine, rollout + reward, strict=True):
            held.copy_(now)

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """One step, as the model itself takes it."""
        return self.model.step(state, action)

    @torch.no_grad()
    def sequence_cost(
        self, state: Tensor, actions: Tensor, discount: float = 1.0, terminal_cost: None = None
    ) -> Tensor:
        """Total cost (*B, N) of actions (*B, N, H, m) from states (*B, s); no discount or terminal cost."""
        config, model = self.model.config, self.model
        if discount != 1 or terminal_cost is not None:
            raise ValueError("sequence_cost: discount and terminal_cost need a model that goes step by step")
        *batch, n_samples, horizon, action_dim = actions.shape
        if action_dim != model.action_dim or state.shape != (*batch, model.state_dim):
            raise ValueError(
                f"sequence_cost: state must be (*B, {model.state_dim}) and actions (*B, N, H, "
                f"{model.action_dim}), got {tuple(state.shape)} and {tuple(actions.shape)}"
            )
        members, rows = config.members, actions.numel() // (horizon * action_dim)
        H, W, PAD = _round_up(config.hidden), _round_up(config.width), self._pad
        sizes = {
            "H": H, "W": W, "PAD": PAD, "ACTIVATION": config.activation,
            "ALL_H": triton.next_power_of_2(max(H, 16)), "ALL_W": triton.next_power_of_2(max(W, 16)),
        }  # fmt: skip
        shape = _shape(rows * members, PAD)
        tiles = triton.cdiv(rows, shape.tile)
        slot_rows = tiles * shape.tile
        trace = torch.empty(
            members, horizon + 1, slot_rows, H + PAD, dtype=torch.float16, device=state.device
        )
        rewards = torch.empty(members, horizon, slot_rows, device=state.device)
        cost = torch.empty(*batch, n_samples, device=state.device)
        with torch.cuda.device(state.device):
            _rollout_kernel[tiles, members](
                state.float().contiguous(), actions.float().contiguous(), trace, *self._rollout_weights,
                rows, n_samples, horizon,
                HIDDEN=config.hidden, X=model.features, U=action_dim, RESIDUAL=config.residual,
                TILE=shape.tile, BLOCK=shape.block, BLOCK2=shape.block2, EARLY=shape.tile < 64,
                num_warps=shape.warps, num_stages=shape.stages, **sizes,
            )  # fmt: skip
            shape = _reward_shape(members * horizon * slot_rows, PAD)
            _reward_kernel[triton.cdiv(horizon * slot_rows, shape.tile), members](
                trace, rewards, *self._reward_weights, horizon * slot_rows, slot_rows,
                TILE=shape.tile, BLOCK=shape.block, num_warps=shape.warps, num_stages=shape.stages, **sizes,
            )  # fmt: skip
            _cost_kernel[(triton.cdiv(rows, 128),)](
                rewards, cost, rows, slot_rows, horizon, config.pessimism, M=members, TILE=128
            )
        return cost

    @torch.no_grad()
    def _pack(self) -> tuple[list[Tensor], list[Tensor]]:
        """The kernels' weights, zero where sizes are rounded up: matrices in float16, biases in float32."""
        model, config = self.model, self.model.config
        H, X, PAD = config.hidden, model.features, self._pad
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


def _round_up(n: int) -> int:
    """To a multiple of 8: rows of half-precision matrices then start at multiples of 16 bytes."""
    return triton.cdiv(n, 8) * 8


def _shape(rows: int, pad: int) -> Shape:
    """As many trajectories a program as keep all multiprocessors busy, and as many weights ahead as fit."""
    if rows <= 16 * 132:
        shape = Shape(16, 32, 64, 4, 4)
    elif rows <= 32 * 132:
        shape = Shape(32, 32, 64, 4, 3)
    elif rows <= 64 * 132:
        shape = Shape(64, 32, 64, 4, 2)
    else:
        shape = Shape(128, 32, 64, 8, 2)
    return shape if pad == 32 else shape._replace(block=16, block2=32)


def _reward_shape(rows: int, pad: int) -> Shape:
    shape = Shape(16, 32, 32, 4, 3) if rows <= 16 * 132 else Shape(64, 32, 32, 4, 3)
    return shape if pad == 32 else shape._replace(block=16)

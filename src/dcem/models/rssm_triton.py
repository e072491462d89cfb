"""Imagined rollouts of an RSSM as one Triton kernel: all steps of all samples in a single launch.

Each program takes a tile of trajectories through the whole horizon. Weights stream from the L2 cache,
products run on the tensor cores in float16 with float32 sums, and activations pass between layers through a
small scratch that stays in the cache. The oracle is `dcem.models.rssm.RSSM.step`. No gradients.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dcem.models.rssm import RSSM

BK = 32  # inputs of a layer that one product takes
PAD = 32  # columns that hold [x, u], and the observation head's outputs


@triton.jit
def _act(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        return tl.maximum(x, 0.0)
    if ACTIVATION == "elu":
        return tl.where(x > 0.0, x, tl.exp(tl.minimum(x, 0.0)) - 1.0)
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _product(
    acc, a_ptr, a_stride, w_ptr, w_stride, rows, columns, K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr
):
    """acc + A W, with A (TILE, K) in the scratch and the columns `columns` of W (K, N)."""
    inner = tl.arange(0, BK)
    for k in range(0, K, BK):
        a = tl.load(a_ptr + rows[:, None] * a_stride + (k + inner)[None, :])
        inside = ((k + inner) < K)[:, None] & (columns < N)[None, :]
        w = tl.load(w_ptr + (k + inner)[:, None] * w_stride + columns[None, :], mask=inside, other=0.0)
        acc = tl.dot(a, w, acc)
    return acc


@triton.jit
def _rollout_kernel(
    hidden_ptr, x_ptr, action_ptr, reward_ptr, scratch_ptr,
    gru_h_ptr, gru_i_ptr, gru_b_ptr,
    obs1_ptr, obs1_b_ptr, obs2_ptr, obs2_b_ptr, obs3_ptr, obs3_b_ptr,
    rew1_ptr, rew1_x_ptr, rew1_b_ptr, rew2_ptr, rew2_b_ptr, rew3_ptr, rew3_b_ptr,
    n_rows, n_samples, n_states, horizon,
    H: tl.constexpr, W: tl.constexpr, X: tl.constexpr, U: tl.constexpr, STRIDE: tl.constexpr,
    RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr,
    TILE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    tile, member = tl.program_id(0), tl.program_id(1)
    local = tl.arange(0, TILE)
    row = tile * TILE + local
    alive = row < n_rows
    start = tl.where(alive, row // n_samples, 0) + member * n_states
    scratch = scratch_ptr + (member * tl.num_programs(0) + tile).to(tl.int64) * TILE * STRIDE
    HP: tl.constexpr = (H + BK - 1) // BK * BK
    WP: tl.constexpr = (W + BK - 1) // BK * BK
    inputs = scratch + 2 * HP
    first = inputs + PAD
    second = first + WP
    at = local[:, None] * STRIDE
    gru_h_ptr += member * H * 3 * H
    gru_i_ptr += member * PAD * 3 * H
    gru_b_ptr += member * 4 * H
    obs1_ptr += member * H * W
    obs2_ptr += member * W * W
    obs3_ptr += member * W * PAD
    rew1_ptr += member * H * W
    rew1_x_ptr += member * PAD * W
    rew2_ptr += member * W * W
    pad = tl.arange(0, PAD)
    block = tl.arange(0, BN)

    for j in range(0, H, BN):
        column = j + block
        h = tl.load(hidden_ptr + start[:, None] * H + column[None, :], mask=(column < H)[None, :], other=0.0)
        tl.store(scratch + at + column[None, :], h, mask=(column < H)[None, :])
    x = tl.load(x_ptr + start[:, None] * X + pad[None, :], mask=(pad < X)[None, :], other=0.0)

    for t in range(horizon):
        old = scratch + (t % 2) * HP
        new = scratch + ((t + 1) % 2) * HP
        is_action = (pad >= X) & (pad < X + U)
        u = tl.load(
            action_ptr + (row[:, None] * horizon + t) * U + (pad - X)[None, :],
            mask=alive[:, None] & is_action[None, :],
            other=0.0,
        )
        tl.store(inputs + at + pad[None, :], tl.where(is_action[None, :], u, x).to(tl.float16))
        tl.debug_barrier()

        for j in range(0, H, BN):
            column = j + block
            valid = column < H
            new_h = tl.zeros((TILE, BN), tl.float32)
            reset = tl.zeros((TILE, BN), tl.float32)
            update = tl.zeros((TILE, BN), tl.float32)
            inner = tl.arange(0, BK)
            for k in range(0, H, BK):
                a = tl.load(old + at + (k + inner)[None, :])
                inside = ((k + inner) < H)[:, None] & valid[None, :]
                w = gru_h_ptr + (k + inner)[:, None] * (3 * H) + column[None, :]
                new_h = tl.dot(a, tl.load(w, mask=inside, other=0.0), new_h)
                reset = tl.dot(a, tl.load(w + H, mask=inside, other=0.0), reset)
                update = tl.dot(a, tl.load(w + 2 * H, mask=inside, other=0.0), update)
            a = tl.load(inputs + at + pad[None, :])
            w = gru_i_ptr + pad[:, None] * (3 * H) + column[None, :]
            keep = (pad < PAD)[:, None] & valid[None, :]
            reset = tl.dot(a, tl.load(w, mask=keep, other=0.0), reset)
            update = tl.dot(a, tl.load(w + H, mask=keep, other=0.0), update)
            new_i = tl.dot(a, tl.load(w + 2 * H, mask=keep, other=0.0))
            new_h += tl.load(gru_b_ptr + column, mask=valid, other=0.0)[None, :]
            reset = tl.sigmoid(reset + tl.load(gru_b_ptr + H + column, mask=valid, other=0.0)[None, :])
            update = tl.sigmoid(update + tl.load(gru_b_ptr + 2 * H + column, mask=valid, other=0.0)[None, :])
            new_i += tl.load(gru_b_ptr + 3 * H + column, mask=valid, other=0.0)[None, :]
            candidate = _tanh(new_i + reset * new_h)
            before = tl.load(old + at + column[None, :], mask=valid[None, :], other=0.0).to(tl.float32)
            after = candidate + update * (before - candidate)
            tl.store(new + at + column[None, :], after.to(tl.float16), mask=valid[None, :])
        tl.debug_barrier()

        for j in range(0, W, BN):
            column = j + block
            bias = tl.load(obs1_b_ptr + member * W + column, mask=column < W, other=0.0)
            acc = tl.zeros((TILE, BN), tl.float32) + bias[None, :]
            acc = _product(acc, new, STRIDE, obs1_ptr, W, local, column, H, W, BK)
            tl.store(
                first + at + column[None, :], _act(acc, ACTIVATION).to(tl.float16), mask=(column < W)[None, :]
            )
        tl.debug_barrier()
        for j in range(0, W, BN):
            column = j + block
            bias = tl.load(obs2_b_ptr + member * W + column, mask=column < W, other=0.0)
            acc = tl.zeros((TILE, BN), tl.float32) + bias[None, :]
            acc = _product(acc, first, STRIDE, obs2_ptr, W, local, column, W, W, BK)
            tl.store(
                second + at + column[None, :],
                _act(acc, ACTIVATION).to(tl.float16),
                mask=(column < W)[None, :],
            )
        tl.debug_barrier()
        out = tl.zeros((TILE, PAD), tl.float32) + tl.load(obs3_b_ptr + member * PAD + pad)[None, :]
        out = _product(out, second, STRIDE, obs3_ptr, PAD, local, pad, W, PAD, BK)
        x = x + out if RESIDUAL else out
        x = tl.where((pad < X)[None, :], x, 0.0)
        tl.store(inputs + at + pad[None, :], x.to(tl.float16))
        tl.debug_barrier()

        for j in range(0, W, BN):
            column = j + block
            bias = tl.load(rew1_b_ptr + member * W + column, mask=column < W, other=0.0)
            acc = tl.zeros((TILE, BN), tl.float32) + bias[None, :]
            acc = _product(acc, new, STRIDE, rew1_ptr, W, local, column, H, W, BK)
            acc = _product(acc, inputs, STRIDE, rew1_x_ptr, W, local, column, PAD, W, BK)
            tl.store(
                first + at + column[None, :], _act(acc, ACTIVATION).to(tl.float16), mask=(column < W)[None, :]
            )
        tl.debug_barrier()
        reward = tl.zeros((TILE,), tl.float32) + tl.load(rew3_b_ptr + member)
        for j in range(0, W, BN):
            column = j + block
            bias = tl.load(rew2_b_ptr + member * W + column, mask=column < W, other=0.0)
            acc = tl.zeros((TILE, BN), tl.float32) + bias[None, :]
            acc = _product(acc, first, STRIDE, rew2_ptr, W, local, column, W, W, BK)
            last = tl.load(rew3_ptr + member * W + column, mask=column < W, other=0.0)
            reward += tl.sum(_act(acc, ACTIVATION) * last[None, :], 1)
        tl.store(reward_ptr + (member * n_rows + row).to(tl.int64) * horizon + t, reward, mask=alive)
        tl.debug_barrier()


class FusedRollout:
    """A planner's view of an RSSM: `sequence_cost` for whole action sequences, in one launch.

    The weights are copies in half precision; `refresh` takes them anew from the model, in place, so that
    captured graphs see them.
    """

    def __init__(self, model: RSSM) -> None:
        config = model.config
        if config.layers != 2 or model.features + model.action_dim > PAD:
            raise ValueError(
                f"FusedRollout: the model must have 2 layers and at most {PAD} features and actions, got "
                f"{config.layers} layers and {model.features + model.action_dim}"
            )
        self.model, self.action_dim = model, model.action_dim
        self._weights = self._pack()
        self._scratch: dict[tuple[int, int], Tensor] = {}

    @torch.no_grad()
    def refresh(self) -> None:
        for mine, now in zip(self._weights, self._pack(), strict=True):
            mine.copy_(now)

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return self.model.step(state, action)

    @torch.no_grad()
    def sequence_cost(self, state: Tensor, actions: Tensor) -> Tensor:
        """Total cost (*B, N) of actions (*B, N, H, m) from states (*B, s)."""
        config, model = self.model.config, self.model
        *batch, n_samples, horizon, action_dim = actions.shape
        members = state.reshape(-1, config.members, model.member_dim).transpose(0, 1)
        hidden = members[..., : config.hidden].half().contiguous()
        x = members[..., config.hidden :].float().contiguous()
        n_states = hidden.shape[1]
        rows = n_states * n_samples
        rewards = torch.empty(config.members, rows, horizon, device=state.device)
        tile, block, warps = _shape(rows * config.members)
        tiles = triton.cdiv(rows, tile)
        stride = _scratch_stride(config.hidden, config.width)
        scratch = self._scratch_for(tiles * config.members * tile, stride)
        with torch.cuda.device(state.device):
            _rollout_kernel[(tiles, config.members)](
                hidden, x, actions.float().contiguous(), rewards, scratch,
                *self._weights,
                rows, n_samples, n_states, horizon,
                H=config.hidden, W=config.width, X=model.features, U=action_dim, STRIDE=stride,
                RESIDUAL=config.residual, ACTIVATION=config.activation,
                TILE=tile, BN=block, BK=BK, PAD=PAD, num_warps=warps, num_stages=3,
            )  # fmt: skip
        cost = -rewards.mean(0)
        if config.members > 1 and config.pessimism > 0:
            cost = cost + config.pessimism * rewards.std(0, correction=0)
        return cost.sum(-1).reshape(*batch, n_samples)

    def _scratch_for(self, rows: int, stride: int) -> Tensor:
        # Zeroed once: columns beyond a layer's width are read, times zero weights, and must not be NaN.
        if (rows, stride) not in self._scratch:
            device = self._weights[0].device
            self._scratch[rows, stride] = torch.zeros(rows, stride, dtype=torch.float16, device=device)
        return self._scratch[rows, stride]

    @torch.no_grad()
    def _pack(self) -> list[Tensor]:
        """The kernel's weight arguments: matrices in float16, biases in float32, [x, u] padded."""
        model = self.model
        H, X = model.config.hidden, model.features
        obs, rew = model.observation_head, model.reward_head

        def half(w: Tensor) -> Tensor:
            return w.half().contiguous()

        def pad(w: Tensor, dim: int) -> Tensor:
            shape = list(w.shape)
            shape[dim] = PAD - shape[dim]
            return torch.cat([w, w.new_zeros(shape)], dim)

        first, out, out_b = rew.weights[0], obs.weights[2][..., :X], obs.biases[2][..., :X]
        return [
            half(model.gru.hidden_weight), half(pad(model.gru.input_weight, 1)),
            model.gru.bias.float().contiguous(),
            half(obs.weights[0]), obs.biases[0].float().contiguous(),
            half(obs.weights[1]), obs.biases[1].float().contiguous(),
            half(pad(out, 2)), pad(out_b, 1).float().contiguous(),
            half(first[:, :H]), half(pad(first[:, H:], 1)), rew.biases[0].float().contiguous(),
            half(rew.weights[1]), rew.biases[1].float().contiguous(),
            rew.weights[2].squeeze(-1).float().contiguous(), rew.biases[2].squeeze(-1).float().contiguous(),
        ]  # fmt: skip


def _scratch_stride(hidden: int, width: int) -> int:
    h, w = triton.cdiv(hidden, BK) * BK, triton.cdiv(width, BK) * BK
    return 2 * h + PAD + 2 * w


def _shape(rows: int) -> tuple[int, int, int]:
    """(tile, block, warps): as many trajectories a program as keep all multiprocessors busy."""
    if rows <= 16 * 132:
        return 16, 256, 8
    if rows <= 32 * 132:
        return 32, 128, 8
    if rows <= 64 * 132:
        return 64, 64, 8
    return 128, 64, 8

# mypy: allow-untyped-defs
"""The critics' values of the actor's own actions in two launches: the terminal value of plans.

A program takes a tile of rows through the actor and one critic, on the tensor cores. Between their layers
is a LayerNorm, which needs a whole row. The first layer is so narrow that it is computed twice: once for mean
and deviation, and again block by block as input of the second layer. Products are float16 with float32
accumulation. The reference is `Guide.worth` without this kernel.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dcem_lab.suite.agents.value import Value

WIDTHS = (64, 128, 256)  # of the hidden layers: the kernel holds a row of them
INPUT_LIMIT, ACTION_LIMIT = 64, 32


def fits(value: Value) -> bool:
    """Whether `FusedJudge` supports these critics, which are scalar."""
    told = value.settings
    small = told["features"] <= INPUT_LIMIT and told["action_dim"] <= ACTION_LIMIT
    return small and told["width"] in WIDTHS


class FusedJudge:
    """The value of observations, pessimistic over critics and members, without gradients.

    The weights are copies in half precision; `refresh` updates them in place, so that captured graphs see
    the change.
    """

    def __init__(self, value: Value, pessimism: float) -> None:
        self._pessimism, self._scale = pessimism, 1 / value.reward_scale
        X, m, K, W = (value.settings[name] for name in ("features", "action_dim", "critics", "width"))
        pad, pad_u = 32 if X <= 32 else 64, 16 if m <= 16 else 32
        self._sizes = {"X": X, "W": W, "PAD": pad, "PAD_U": pad_u}
        self._critics = K
        actor, critics = value.actor.net, value.critics
        self._weights: list[Tensor] = []
        self._places: list[Tensor] = []
        self._originals: list[Tensor] = []
        self._hold(actor.weights[0][0], pad, W)
        self._hold(actor.biases[0][0], W)
        self._hold(actor.weights[1][0], W, W)
        self._hold(actor.biases[1][0], W)
        self._hold(actor.weights[2][0], W, pad_u)
        self._hold(actor.biases[2][0], pad_u)
        self._hold(critics.weights[0][:, :X], K, pad, W)
        self._hold(critics.weights[0][:, X:], K, pad_u, W)
        self._hold(critics.biases[0], K, W, bias=True)
        self._hold(critics.weights[1], K, W, W)
        self._hold(critics.biases[1], K, W, bias=True)
        self._hold(critics.weights[2].squeeze(-1), K, W, bias=True)
        self._hold(critics.biases[2].squeeze(-1), K)
        self.refresh()

    def _hold(self, original: Tensor, *shape: int, bias: bool = False) -> None:
        """A buffer for a matrix in float16, or a bias in float32, zero where sizes are rounded up."""
        dtype = torch.float32 if bias or len(shape) == 1 else torch.float16
        held = torch.zeros(shape, dtype=dtype, device=original.device)
        self._weights.append(held)
        self._places.append(held[tuple(slice(n) for n in original.shape)])
        self._originals.append(original.detach())

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights from the critics and the actor again."""
        torch._foreach_copy_(self._places, self._originals)

    def __call__(self, x: Tensor) -> Tensor:
        """Observations (..., M, X) of M members → (...), in units of the reward."""
        (*batch, M, _), K = x.shape, self._critics
        x = x.float().flatten(0, -2)  # a copy only of rows that are not evenly spaced
        x = x if x.stride(-1) == 1 else x.contiguous()
        rows = len(x)
        said = torch.empty(K, rows, device=x.device)
        worth = torch.empty(batch, device=x.device)
        tile, warps = (16, 4) if rows <= 1024 else (64, 8)
        with torch.cuda.device_of(x):
            judge_kernel[triton.cdiv(rows, tile), K](
                x, said, *self._weights, rows, x.stride(0),
                **self._sizes, TILE=tile, BLOCK=32, num_warps=warps, num_stages=3,
            )  # fmt: skip
            worth_kernel[(triton.cdiv(rows // M, 128),)](
                said, worth, rows // M, rows, self._pessimism, self._scale, K=K, M=M, TILE=128
            )
        return worth


@triton.jit
def _gate(y):
    return y * tl.sigmoid(y)


@triton.jit
def _hidden(
    x, u, x_ptr, u_ptr, bias_ptr, second_ptr, second_b_ptr,
    WITH_U: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr, PAD_U: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Two layers, each with its normalisation and its gate: [x, u] → (TILE, W)."""
    unit, pad, pad_u = tl.arange(0, W), tl.arange(0, PAD), tl.arange(0, PAD_U)
    first = tl.dot(x, tl.load(x_ptr + pad[:, None] * W + unit[None, :])) + tl.load(bias_ptr + unit)[None, :]
    if WITH_U:
        first = tl.dot(u, tl.load(u_ptr + pad_u[:, None] * W + unit[None, :]), first)
    mean = tl.sum(first, 1)[:, None] / W
    rate = tl.rsqrt(tl.sum((first - mean) * (first - mean), 1)[:, None] / W + 1e-5)
    second = tl.zeros((TILE, W), tl.float32)
    for j in range(0, W, BLOCK):
        column = j + tl.arange(0, BLOCK)
        part = tl.dot(x, tl.load(x_ptr + pad[:, None] * W + column[None, :]))
        if WITH_U:
            part = tl.dot(u, tl.load(u_ptr + pad_u[:, None] * W + column[None, :]), part)
        part = _gate((part + tl.load(bias_ptr + column)[None, :] - mean) * rate).to(tl.float16)
        second = tl.dot(part, tl.load(second_ptr + column[:, None] * W + unit[None, :]), second)
    second += tl.load(second_b_ptr + unit)[None, :]
    mean = tl.sum(second, 1)[:, None] / W
    rate = tl.rsqrt(tl.sum((second - mean) * (second - mean), 1)[:, None] / W + 1e-5)
    return _gate((second - mean) * rate)


@triton.jit(do_not_specialize=["n_rows", "stride"])
def judge_kernel(
    x_ptr, said_ptr,
    actor1_ptr, actor1_b_ptr, actor2_ptr, actor2_b_ptr, actor3_ptr, actor3_b_ptr,
    critic_x_ptr, critic_u_ptr, critic1_b_ptr, critic2_ptr, critic2_b_ptr, critic3_ptr, critic3_b_ptr,
    n_rows, stride,
    X: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr, PAD_U: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The critics' values (K, n_rows) of rows x (n_rows, X), `stride` apart, with the actor's actions."""
    critic = tl.program_id(1)
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    alive = row < n_rows
    unit, pad, pad_u = tl.arange(0, W), tl.arange(0, PAD), tl.arange(0, PAD_U)
    inside = alive[:, None] & (pad < X)[None, :]
    x = tl.load(x_ptr + row.to(tl.int64)[:, None] * stride + pad[None, :], mask=inside, other=0.0)
    x = x.to(tl.float16)
    h = _hidden(
        x, x, actor1_ptr, actor1_ptr, actor1_b_ptr, actor2_ptr, actor2_b_ptr,
        False, W, PAD, PAD_U, TILE, BLOCK,
    )  # fmt: skip
    u = tl.dot(h.to(tl.float16), tl.load(actor3_ptr + unit[:, None] * PAD_U + pad_u[None, :]))
    u = 2.0 * tl.sigmoid(2.0 * (u + tl.load(actor3_b_ptr + pad_u)[None, :])) - 1.0
    h = _hidden(
        x, u.to(tl.float16), critic_x_ptr + critic * PAD * W, critic_u_ptr + critic * PAD_U * W,
        critic1_b_ptr + critic * W, critic2_ptr + critic * W * W, critic2_b_ptr + critic * W,
        True, W, PAD, PAD_U, TILE, BLOCK,
    )  # fmt: skip
    said = tl.sum(h * tl.load(critic3_ptr + critic * W + unit)[None, :], 1) + tl.load(critic3_b_ptr + critic)
    tl.store(said_ptr + critic.to(tl.int64) * n_rows + row, said, mask=alive)


@triton.jit(do_not_specialize=["n", "rows", "pessimism", "scale"])
def worth_kernel(
    said_ptr, worth_ptr, n, rows, pessimism, scale, K: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr
):
    """scale · (mean − pessimism · std) over critics and members of their values (K, n, M): (n,)."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    alive = row < n
    mean = tl.zeros((TILE,), tl.float32)
    for k in tl.static_range(K):
        for m in tl.static_range(M):
            mean += tl.load(said_ptr + k * rows + row * M + m, mask=alive, other=0.0) / (K * M)
    variance = tl.zeros((TILE,), tl.float32)
    for k in tl.static_range(K):
        for m in tl.static_range(M):
            off = tl.load(said_ptr + k * rows + row * M + m, mask=alive, other=0.0) - mean
            variance += off * off / (K * M)
    tl.store(worth_ptr + row, scale * (mean - pessimism * tl.sqrt(variance)), mask=alive)

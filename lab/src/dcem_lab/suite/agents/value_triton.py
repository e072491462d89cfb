# mypy: allow-untyped-defs
"""The gradients of critics and actor on CUDA, in eleven launches.

The networks have their own kernels (`mlp_triton`). Everything between them is so little work that launches
are all it costs, so it is in three kernels, and the chain rule is written out:

- `act_kernel`: the inputs of all critics, from what the actors said;
- `judge_kernel`: targets, the gradients of the critics' outputs, and the metrics;
- `actor_kernel`: the gradient of the actor's outputs, from that of the critics' inputs.

The reference is the loss of `ValueLearner`, differentiated by autograd.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dcem_lab.suite.agents.value import Value
from dcem_lab.suite.rssm.fast import mlp_triton

FIGURES = ("critic_loss", "value", "target", "calm")
TILE = 256  # numbers in work at a time


def fits(value: Value) -> bool:
    """Whether there are kernels for these networks, and for the device that they are on."""
    networks = (value.actor.net, value.critics)
    return value.bins is None and all(
        net.weights[0].dtype == torch.float32 and mlp_triton.fits(net.weights[0], net.in_a_row)
        for net in networks
    )


def gradients(
    value: Value, average: Value, rows: Tensor, bound: float | None, calm: float
) -> tuple[dict[Tensor, Tensor], Tensor]:
    """The gradient of every parameter, and `FIGURES`.

    Rows (B, C) are `Transitions`, with columns x, u, earned, behind, discount, noise and pair.
    """
    told, precision = value.settings, mlp_triton.precision()
    X, m, K = (told[name] for name in ("features", "action_dim", "critics"))
    (B, C), sizes = rows.shape, {"X": X, "M": m}
    actor, critics = ([p.detach() for p in net.in_a_row] for net in (value.actor.net, value.critics))
    x, behind = rows[None, :, :X], rows[None, :, X + m + 1 : 2 * X + m + 1]

    raw_behind, _, _ = mlp_triton.forward(behind, average.actor.net.in_a_row, precision)
    raw, kept_actor, rates_actor = mlp_triton.forward(x, actor, precision)
    inputs_behind, inputs = rows.new_empty(B, X + m), rows.new_empty(2 * B, X + m)
    pad = triton.next_power_of_2(X + m)
    with torch.cuda.device_of(rows):
        act_kernel[(triton.cdiv(B, 16),)](
            rows, raw_behind, raw, inputs_behind, inputs, B, C, **sizes, PAD=pad, TILE=16
        )
    said_behind, _, _ = mlp_triton.forward(
        inputs_behind.expand(K, -1, -1), average.critics.in_a_row, precision
    )
    said, kept, rates = mlp_triton.forward(inputs.expand(K, -1, -1), critics, precision)
    above, figures = torch.empty_like(said), rows.new_empty(len(FIGURES))
    with torch.cuda.device_of(rows):
        judge_kernel[(1,)](
            rows, said_behind, said, raw, above, figures, B, C,
            value.reward_scale, 0.0 if bound is None else bound, **sizes, K=K, BOUNDED=bound is not None,
            TILE=TILE,
        )  # fmt: skip
    gx, *of_critics = mlp_triton.backward(
        above, inputs.expand(K, -1, -1), critics, kept, rates, True, True, precision, counted=B
    )
    above_actor = torch.empty_like(raw)
    with torch.cuda.device_of(rows):
        actor_kernel[(triton.cdiv(B * m, TILE),)](gx, raw, above_actor, B, calm, **sizes, K=K, TILE=TILE)
    _, *of_actor = mlp_triton.backward(above_actor, x, actor, kept_actor, rates_actor, False, True, precision)
    learning = [*value.actor.net.in_a_row, *value.critics.in_a_row]
    found = dict(zip(learning, [*of_actor, *of_critics], strict=True))
    return found, figures  # type: ignore[return-value]  # no gradient is None: all were asked for


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _least(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit(do_not_specialize=["n"])
def act_kernel(
    rows_ptr, raw_behind_ptr, raw_ptr, behind_ptr, inputs_ptr, n, C,
    X: tl.constexpr, M: tl.constexpr, PAD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Inputs x, u of the critics: behind the transitions, then of these, with replayed and own actions."""
    row, column = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, PAD)
    alive, own = (row < n)[:, None], column >= X
    inside, acting = alive & (column < X + M)[None, :], alive & (own & (column < X + M))[None, :]
    here = rows_ptr + row[:, None] * C
    said = row[:, None] * M + (column - X)[None, :]

    u = _tanh(tl.load(raw_behind_ptr + said, mask=acting, other=0.0))
    u += tl.load(here + (2 * X + M + 2 + column - X)[None, :], mask=acting, other=0.0)
    u = _least(tl.maximum(u, -1.0, propagate_nan=tl.PropagateNan.ALL), 1.0)
    x = tl.load(here + (X + M + 1 + column)[None, :], mask=alive & (column < X)[None, :], other=0.0)
    to = row[:, None] * (X + M) + column[None, :]
    tl.store(behind_ptr + to, tl.where(own[None, :], u, x), mask=inside)

    replayed = tl.load(here + column[None, :], mask=inside, other=0.0)
    tl.store(inputs_ptr + to, replayed, mask=inside)
    u = _tanh(tl.load(raw_ptr + said, mask=acting, other=0.0))
    tl.store(inputs_ptr + n * (X + M) + to, tl.where(own[None, :], u, replayed), mask=inside)


@triton.jit(do_not_specialize=["n", "scale", "bound"])
def judge_kernel(
    rows_ptr, said_behind_ptr, said_ptr, raw_ptr, above_ptr, figures_ptr, n, C, scale, bound,
    X: tl.constexpr, M: tl.constexpr, K: tl.constexpr, BOUNDED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program: gradients (K, 2n) of what critics said of replayed actions, then of the actor's own."""
    error = tl.zeros((TILE,), tl.float32)
    value = tl.zeros((TILE,), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    calm = tl.zeros((TILE,), tl.float32)
    for begin in range(0, n, TILE):
        row = begin + tl.arange(0, TILE)
        alive = row < n
        here = rows_ptr + row * C
        earned = tl.load(here + X + M, mask=alive, other=0.0)
        discount = tl.load(here + 2 * X + M + 1, mask=alive, other=0.0)
        first = tl.load(here + 2 * X + 2 * M + 2, mask=alive, other=0.0).to(tl.int32)
        second = tl.load(here + 2 * X + 2 * M + 3, mask=alive, other=0.0).to(tl.int32)
        one = tl.load(said_behind_ptr + first * n + row, mask=alive, other=0.0)
        other = tl.load(said_behind_ptr + second * n + row, mask=alive, other=0.0)
        worth = _least(one, other) / scale
        if BOUNDED:
            worth = _least(worth, bound)
        target = scale * (earned + discount * worth)
        total += target
        for k in tl.static_range(K):
            at = 2 * k * n + row
            off = tl.load(said_ptr + at, mask=alive, other=0.0) - target
            error += off * off
            tl.store(above_ptr + at, 2.0 * off / n, mask=alive)
            value += tl.load(said_ptr + at + n, mask=alive, other=0.0)
            tl.store(above_ptr + at + n, tl.zeros((TILE,), tl.float32) - 1.0 / (K * n), mask=alive)
        for j in tl.static_range(M):
            raw = tl.load(raw_ptr + row * M + j, mask=alive, other=0.0)
            calm += raw * raw
    tl.store(figures_ptr, tl.sum(error, 0) / (K * n))
    tl.store(figures_ptr + 1, tl.sum(value, 0) / (K * n) / scale)
    tl.store(figures_ptr + 2, tl.sum(total, 0) / n / scale)
    tl.store(figures_ptr + 3, tl.sum(calm, 0) / (M * n))


@triton.jit(do_not_specialize=["n", "calm"])
def actor_kernel(
    gx_ptr, raw_ptr, above_ptr, n, calm,
    X: tl.constexpr, M: tl.constexpr, K: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The gradient (n, M) of what the actor said, before its tanh: from critics (K, 2n, X + M), and calm."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    alive = at < n * M
    row, j = at // M, at % M
    raw = tl.load(raw_ptr + at, mask=alive, other=0.0)
    g = tl.zeros((TILE,), tl.float32)
    for k in tl.static_range(K):
        g += tl.load(gx_ptr + (2 * k * n + n + row) * (X + M) + X + j, mask=alive, other=0.0)
    u = _tanh(raw)
    tl.store(above_ptr + at, g * (1.0 - u * u) + 2.0 * calm * raw / (n * M), mask=alive)

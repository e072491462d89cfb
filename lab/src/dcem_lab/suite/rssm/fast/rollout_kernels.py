# mypy: allow-untyped-defs
"""The kernels of `dcem_lab.suite.rssm.fast.rollout_triton`: rollouts of an RSSM on the tensor cores.

A rollout is a chain of small layers. Its time is dominated by loading weights from the L2 cache in every
step, and by waiting for one layer after another. The design follows from that:

- `rollout_kernel`, for many trajectories: a program takes a tile of them through the whole horizon, alone. A
  layer whose columns come block by block is at once a factor of the next layer's sum: GRU and first layer of
  the observation head are one loop over the hidden units, second and third layer another. Weights are fetched
  some blocks ahead, and activations stay on the chip.
- `team_rollout_kernel`, for few: a team of programs takes a tile, each with its share of every layer's units,
  whose weights it keeps on the chip for all steps. Activations pass through the cache, three times per step.
- Rewards feed nothing back. The states go to a trace, and `reward_kernel` takes the reward head over all
  steps of all trajectories side by side.

Products are float16 with float32 accumulation.
"""

import triton
import triton.language as tl


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


@triton.jit
def _next_x(x, out, pad, X: tl.constexpr, RESIDUAL: tl.constexpr):
    """The next observation from the head's output; zero in the columns that hold none."""
    x = x + out if RESIDUAL else out
    return tl.where((pad < X)[None, :], x, 0.0)


@triton.jit(do_not_specialize=["n_rows", "n_samples", "horizon"])
def rollout_kernel(
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
        x = _next_x(x, out, pad, X, RESIDUAL)
        tl.store(new + H + pad[None, :], x.to(tl.float16))
        old = new


@triton.jit
def _send(pointer, value, mask, counter_ptr):
    """Pass this program's part of a layer to its team."""
    tl.store(pointer, value.to(tl.float16), mask=mask)
    tl.debug_barrier()
    tl.atomic_add(counter_ptr, 1, sem="release", scope="gpu")


@triton.jit
def _count(counter_ptr):
    return tl.inline_asm_elementwise(
        "ld.acquire.gpu.global.u32 $0, [$1];", "=r,l", [counter_ptr], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _receive(pointer, mask, counter_ptr, arrivals):
    """The whole layer, once all its parts have arrived."""
    while _count(counter_ptr) < arrivals:
        pass
    return tl.load(pointer, mask=mask, other=0.0, cache_modifier=".cg")


@triton.jit(do_not_specialize=["n_rows", "n_samples", "horizon"])
def team_rollout_kernel(
    state_ptr, action_ptr, trace_ptr, layer_ptr, counter_ptr,
    gru_h_ptr, gru_i_ptr, gru_b_ptr, obs1_ptr, obs1_b_ptr, obs2_ptr, obs2_b_ptr, obs3_ptr, obs3_b_ptr,
    n_rows, n_samples, horizon,
    HIDDEN: tl.constexpr, X: tl.constexpr, U: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr, ALL_H: tl.constexpr, ALL_W: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, TEAM: tl.constexpr,
):  # fmt: skip
    """What `rollout_kernel` does, each tile by a team of programs that hold BLOCK units of every layer.

    Layers (teams, 3, TILE, max(H, W)) hold h, first and second layer; counters (teams, 32) start as zeros.
    """
    tile, part = tl.program_id(0) // TEAM, tl.program_id(0) % TEAM
    tiles = tl.num_programs(0) // TEAM
    member, members = tl.program_id(1), tl.num_programs(1)
    team = member * tiles + tile
    row = tile * TILE + tl.arange(0, TILE)
    alive = row < n_rows
    k_h = tl.arange(0, ALL_H)
    k_w = tl.arange(0, ALL_W)
    pad = tl.arange(0, PAD)
    unit = part * BLOCK + tl.arange(0, BLOCK)
    is_action = (pad >= X) & (pad < X + U)
    has_h, has_w = (unit < H)[None, :], (unit < W)[None, :]
    all_h, all_w = (k_h < H)[None, :], (k_w < W)[None, :]

    # They stay in shared memory: nothing but activations travels while the steps run.
    gru_h_ptr += member * H * 3 * H
    gru_i_ptr += member * PAD * 3 * H
    gru_b_ptr += member * 4 * H
    hidden_new = _matrix(gru_h_ptr, k_h, unit, H, H, 3 * H)
    hidden_reset = _matrix(gru_h_ptr + H, k_h, unit, H, H, 3 * H)
    hidden_update = _matrix(gru_h_ptr + 2 * H, k_h, unit, H, H, 3 * H)
    input_reset = _matrix(gru_i_ptr, pad, unit, PAD, H, 3 * H)
    input_update = _matrix(gru_i_ptr + H, pad, unit, PAD, H, 3 * H)
    input_new = _matrix(gru_i_ptr + 2 * H, pad, unit, PAD, H, 3 * H)
    obs1 = _matrix(obs1_ptr + member * H * W, k_h, unit, H, W, W)
    obs2 = _matrix(obs2_ptr + member * W * W, k_w, unit, W, W, W)
    obs3 = _matrix(obs3_ptr + member * W * PAD, k_w, pad, W, PAD, PAD)
    bias_new_h = _bias(gru_b_ptr, unit, H)
    bias_reset = _bias(gru_b_ptr + H, unit, H)
    bias_update = _bias(gru_b_ptr + 2 * H, unit, H)
    bias_new_i = _bias(gru_b_ptr + 3 * H, unit, H)
    bias1 = _bias(obs1_b_ptr + member * W, unit, W)
    bias2 = _bias(obs2_b_ptr + member * W, unit, W)
    bias3 = _bias(obs3_b_ptr + member * PAD, pad, PAD)

    STRIDE: tl.constexpr = H + PAD
    WIDEST: tl.constexpr = max(H, W)
    slot = tiles * TILE * STRIDE
    trace = trace_ptr + member.to(tl.int64) * (horizon + 1) * slot + row[:, None] * STRIDE
    h_ptr = layer_ptr + team * (3 * TILE * WIDEST) + tl.arange(0, TILE)[:, None] * WIDEST
    first_ptr, second_ptr = h_ptr + TILE * WIDEST, h_ptr + 2 * TILE * WIDEST
    counter_ptr += team * 32

    begin = state_ptr + (tl.where(alive, row // n_samples, 0) * members + member)[:, None] * (HIDDEN + X)
    h = tl.load(begin + k_h[None, :], mask=(k_h < HIDDEN)[None, :], other=0.0).to(tl.float16)
    mine = tl.load(begin + unit[None, :], mask=(unit < HIDDEN)[None, :], other=0.0)
    x = tl.load(begin + HIDDEN + pad[None, :], mask=(pad < X)[None, :], other=0.0)
    u_ptr = action_ptr + row[:, None] * (horizon * U) + (pad - X)[None, :]
    has_u = alive[:, None] & is_action[None, :]
    new_h = tl.dot(h, hidden_new)
    reset = tl.dot(h, hidden_reset)
    update = tl.dot(h, hidden_update)
    for t in range(horizon):
        u = tl.load(u_ptr + t * U, mask=has_u, other=0.0)
        if t > 0:
            layer = _receive(second_ptr + k_w[None, :], all_w, counter_ptr, 3 * t * TEAM)
            x = _next_x(x, tl.dot(layer, obs3) + bias3, pad, X, RESIDUAL)
            tl.store(trace + H + pad[None, :], x.to(tl.float16), mask=(pad < PAD)[None, :] & (part == 0))
        xu = tl.where(is_action[None, :], u, x).to(tl.float16)
        reset = _sigmoid(tl.dot(xu, input_reset, reset) + bias_reset)
        update = _sigmoid(tl.dot(xu, input_update, update) + bias_update)
        candidate = _tanh(tl.dot(xu, input_new) + bias_new_i + reset * (new_h + bias_new_h))
        mine = candidate + update * (mine - candidate)
        _send(h_ptr + unit[None, :], mine, has_h, counter_ptr)
        trace += slot
        tl.store(trace + unit[None, :], mine.to(tl.float16), mask=has_h)

        h = _receive(h_ptr + k_h[None, :], all_h, counter_ptr, (3 * t + 1) * TEAM)
        first = _act(tl.dot(h, obs1) + bias1, ACTIVATION)
        _send(first_ptr + unit[None, :], first, has_w, counter_ptr)
        # The next step's share that needs no x, while the others' parts are on their way.
        new_h = tl.dot(h, hidden_new)
        reset = tl.dot(h, hidden_reset)
        update = tl.dot(h, hidden_update)
        layer = _receive(first_ptr + k_w[None, :], all_w, counter_ptr, (3 * t + 2) * TEAM)
        second = _act(tl.dot(layer, obs2) + bias2, ACTIVATION)
        _send(second_ptr + unit[None, :], second, has_w, counter_ptr)
    layer = _receive(second_ptr + k_w[None, :], all_w, counter_ptr, 3 * horizon * TEAM)
    x = _next_x(x, tl.dot(layer, obs3) + bias3, pad, X, RESIDUAL)
    tl.store(trace + H + pad[None, :], x.to(tl.float16), mask=(pad < PAD)[None, :] & (part == 0))


@triton.jit(do_not_specialize=["n_slots", "slot_rows"])
def reward_kernel(
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


@triton.jit(do_not_specialize=["n_rows", "slot_rows", "horizon", "pessimism", "discount"])
def cost_kernel(
    reward_ptr, cost_ptr, n_rows, slot_rows, horizon, pessimism, discount,
    M: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Σ_t γ^t (pessimism · std − mean) over the members' rewards (M, horizon, slot_rows): costs (n_rows,)."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    alive = row < n_rows
    cost = tl.zeros((TILE,), tl.float32)
    weight = tl.full((TILE,), 1.0, tl.float32)
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
        cost += weight * (pessimism * tl.sqrt(variance) - mean)
        weight *= discount
    tl.store(cost_ptr + row, cost, mask=alive)

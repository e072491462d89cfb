"""What is measured: soft top-k, whole solves, planning, and updates of the world model and of the value."""

import contextlib
import importlib
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from clock import Run, as_graph, draw, median_ms, tf32, without_grad
from pages import Row, Table
from torch import Tensor

import dcem
from dcem_lab.suite.agents import ValueConfig, ValueLearner
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM, RSSMConfig, multistep_loss
from dcem_lab.suite.rssm.fast import mlp
from dcem_lab.suite.rssm.fast.rollout_triton import FusedRollout
from dcem_lab.training import descent

OBS, ACTIONS, HORIZON, ITERATIONS = 17, 6, 12, 10  # cheetah.run, and the paper's planner
ENSEMBLE = RSSMConfig(
    activation="gelu", residual=True, predict_std=False, sample=False, loss="mse", pessimism=0.5
)

# Milliseconds of the code released with the paper, on one H200: forward, forward+backward.
RELEASED = "released code, as published"
RELEASED_LML: dict[tuple[int, int], tuple[float | None, float | None]] = {
    (1, 100): (2.9, None),
    (16, 1000): (1.8, None),
    (2500, 100): (2.2, None),
    (4096, 1000): (8.4, 9.3),
}
SEPARATE = "dcem without its fused kernels, captured"
RELEASED_DCEM = {1: 31.0, 64: 34.0, 1024: 36.0}  # forward+backward


def lml() -> Table:
    rows = [row for (batch, n), ms in RELEASED_LML.items() for row in _lml(batch, n, *ms)]
    note = (
        "Bytes: x read and y written; with the backward, also y and its gradient read and x's gradient "
        "written. `torch.topk` has no backward to compare with: its forward stands beside both."
    )
    return Table("lml", "Soft top-k", note, rows)


def _lml(batch: int, n: int, *released: float | None) -> list[Row]:
    k, x, g = n // 10, draw(batch, n).requires_grad_(), draw(batch, n)
    constant, target, size = x.detach(), torch.empty(batch, n, device="cuda"), 4.0 * batch * n
    topk = median_ms(as_graph(lambda: constant.topk(k)))
    copy = median_ms(as_graph(lambda: target.copy_(constant)))

    def rows(what: str, f: Run, moved: float, published: float | None) -> list[Row]:
        case = f"{batch}×{n}, k={k}, {what}"
        found = [
            Row(case, "dcem, captured", median_ms(as_graph(f)), moved),
            Row(case, "dcem", median_ms(f), moved),
        ]
        with plain_lml():
            found += [
                Row(case, "dcem without its kernel, captured", median_ms(as_graph(f)), moved),
                Row(case, "dcem without its kernel", median_ms(f), moved),
            ]
        return [
            *found,
            Row(case, RELEASED, published, moved),
            Row(case, "torch.topk, captured", topk, size),
            Row(case, "a copy, captured", copy, 2 * size),
        ]

    forward = rows("forward", without_grad(lambda: dcem.lml(x, k)), 2 * size, released[0])
    both = lambda: torch.autograd.grad(dcem.lml(x, k), x, g)  # noqa: E731
    return forward + rows("forward+backward", both, 5 * size, released[1])


def plain_lml() -> contextlib.AbstractContextManager[Any]:
    """The soft top-k without its kernel."""
    module = importlib.import_module("dcem.topk.lml")  # whose name in the package is the function's
    return mock.patch.object(module, "fused", None)


def separate() -> contextlib.AbstractContextManager[Any]:
    """Without the fused kernels between evaluations of the objective, but with that of the soft top-k."""
    return mock.patch.object(importlib.import_module("dcem.distributions.fused"), "DEVICES", ())


def solve() -> Table:
    rows = [row for batch, ms in RELEASED_DCEM.items() for row in _solve(batch, ms)]
    note = (
        "The 20-dimensional quadratic, N=100, k=10, T=10. The objective alone is evaluated (and "
        "differentiated) T times, at as many points. Bytes: the samples of each iteration written and read "
        "once, or read once by the objective; twice that with the backward."
    )
    return Table("dcem", "A whole solve", note, rows)


def _solve(batch: int, released: float) -> list[Row]:
    n, paper = 20, dcem.Gaussian(estimator="likelihood")
    solver = dcem.DCEM(
        n_samples=100, n_elite=10, n_iters=ITERATIONS, tau=1.0, normalize=True, distribution=paper
    )
    centre, x0, g = draw(batch, n).requires_grad_(), draw(batch, n), draw(batch, n)
    samples = draw(batch, 100, n)
    moved = 2 * 4.0 * ITERATIONS * samples.numel()

    def f(x: Tensor) -> Tensor:
        return (x - centre.unsqueeze(-2)).square().sum(-1)

    def solution(x0: Tensor) -> Tensor:
        return dcem.minimize(f, solver, x0).x

    def gradient(x0: Tensor) -> Tensor:
        with torch.enable_grad():
            return torch.autograd.grad(solution(x0), centre, g)[0]

    def objective() -> None:
        for _ in range(ITERATIONS):
            f(samples)

    def objective_and_gradient() -> None:
        for _ in range(ITERATIONS):
            x = samples.detach().requires_grad_()
            torch.autograd.grad(f(x).sum(), [x, centre])

    joined = dcem.capture(solution, parameters=[centre])
    whole = dcem.capture(gradient)
    bare, bare_both = without_grad(objective), objective_and_gradient
    case, both = f"B={batch}, forward", f"B={batch}, forward+backward"
    with separate():  # when they are captured, in the first call
        forward = median_ms(without_grad(dcem.capture(solution), x0))
        forward_and_backward = median_ms(without_grad(dcem.capture(gradient), x0))
    return [
        Row(case, "dcem, captured", median_ms(without_grad(joined, x0)), moved),
        Row(case, SEPARATE, forward, moved),
        Row(case, "dcem", median_ms(without_grad(solution, x0)), moved),
        Row(case, "the objective alone, captured", median_ms(as_graph(bare)), moved / 2),
        Row(case, "the objective alone", median_ms(bare), moved / 2),
        Row(both, "dcem, captured, one graph", median_ms(without_grad(whole, x0)), 2 * moved),
        Row(both, SEPARATE, forward_and_backward, 2 * moved),
        Row(both, "dcem, captured, joined to autograd",
            median_ms(lambda: torch.autograd.grad(joined(x0), centre, g)), 2 * moved),
        Row(both, "dcem", median_ms(lambda: gradient(x0)), 2 * moved),
        Row(both, "the objective alone, captured", median_ms(as_graph(bare_both)), moved),
        Row(both, "the objective alone", median_ms(bare_both), moved),
        Row(both, RELEASED, released, 2 * moved),
    ]  # fmt: skip


def plan() -> Table:
    rows = [row for batch in (1, 16, 64) for row in _plan(batch, 1000, 100, members=1, latent=False)]
    rows += [row for batch in (1, 16, 64) for row in _plan(batch, 100, 10, members=1, latent=True)]
    rows += _plan(16, 400, 40, members=3, latent=False)
    note = (
        f"T={ITERATIONS}, H={HORIZON}, a GRU and layers of 200 units, {OBS} observations, {ACTIONS} actions. "
        "Latent: z of 16 numbers, a decoder with two layers of 200 units, the soft top-k. Bytes: the "
        "candidates' actions written and read once. Operations: the model's products."
    )
    return Table("plan", "Planning", note, rows)


def _plan(batch: int, n: int, k: int, members: int, latent: bool) -> list[Row]:
    config = replace(ENSEMBLE, members=members)
    model = RSSM(OBS, ACTIONS, config).cuda().requires_grad_(False)
    half = RSSM(OBS, ACTIONS, config).cuda().half().requires_grad_(False)
    states = model.initial(draw(batch, OBS))
    decoder = None
    if latent:
        decoder = dcem.Decoder(16, HORIZON, ACTIONS, hidden=(200, 200)).cuda().requires_grad_(False)
    candidates = 1.0 * batch * n * ITERATIONS * HORIZON
    moved, flop = 2 * 4 * candidates * ACTIONS, 2 * candidates * sum(products(model).values())
    solver = dcem.DCEM(
        n_samples=n, n_elite=k, n_iters=ITERATIONS, tau=1.0 if latent else 0.0,
        normalize=True, distribution=dcem.Gaussian(sigma=0.5 if latent else 1.0, estimator="likelihood"),
    )  # fmt: skip

    def planner(imagine: Any) -> Any:
        mpc = dcem.MPC(imagine, HORIZON, solver=solver, decoder=decoder, action_dim=ACTIONS).cuda()
        return dcem.capture(lambda states: mpc(states, cost=False).action)

    def ms(imagine: Any) -> float:
        return median_ms(without_grad(planner(imagine), states))

    case = f"B={batch}, N={n}" + ", latent" * latent + f", {members} members" * (members > 1)
    rows = [
        Row(case, "fused, captured", ms(FusedRollout(model)), moved, flop),
        Row(case, "float16, captured", ms(InHalf(half)), moved, flop),
        Row(case, "float32, captured", ms(model), moved, flop, "fp32"),
        Row(case, "the search alone, captured", ms(Nothing()), moved),
    ]
    if batch == 1:
        eager = median_ms(without_grad(planner(model).f, states))
        rows.append(Row(case, "float32", eager, moved, flop, "fp32"))
    return rows


class InHalf:
    """A model in half precision, under a search in float32."""

    def __init__(self, model: RSSM) -> None:
        self.model = model

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        state, cost = self.model.step(state.half(), action.half())
        return state, cost.float()


class Nothing:
    """A model that costs next to nothing."""

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("only whole sequences")

    def sequence_cost(self, state: Tensor, actions: Tensor, *_: Any) -> Tensor:
        return actions[..., 0, 0] + 0.0


def products(model: RSSM) -> dict[str, int]:
    """Multiply-adds of one step from one state, over all members, by part."""
    parts = {"gru": model.gru, "observation": model.observation_head, "reward": model.reward_head}
    return {name: sum(p.numel() for p in part.parameters() if p.ndim == 3) for name, part in parts.items()}


def update() -> Table:
    rows = _update("paper", RSSMConfig())
    for members in (1, 3):
        rows += _update(f"members={members}", replace(ENSEMBLE, members=members))
    note = (
        "Loss and gradients on 50 chunks of 50 steps, D=12. Bytes: what the backward needs of the imagined "
        "steps, written and read once. Operations: the products, forward once and backward twice."
    )
    return Table("update", "One update of the world model", note, rows)


def _update(name: str, config: RSSMConfig) -> list[Row]:
    chunks, length = 50, 50
    obs, actions = draw(chunks, length + 1, OBS), draw(chunks, length, ACTIONS)
    rewards = draw(chunks, length)
    model = RSSM(OBS, ACTIONS, config).cuda()
    parameters, work = list(model.parameters()), products(model)
    later = chunks * sum(length - d for d in range(1, config.distance))  # imagined, beyond the first step
    imagined = later + chunks * length
    flop = 3 * 2.0 * (imagined * sum(work.values()))
    # Gates, state, and both heads' layers before and after their activation.
    kept = 4 * config.hidden + model.member_dim + 2 * 2 * config.layers * config.width
    moved = 2 * 4.0 * imagined * kept * config.members

    def ms(fast: bool, dtype: torch.dtype | None = None) -> float:
        def run() -> None:
            loss, _ = multistep_loss(model, obs, actions, rewards, fast=fast, dtype=dtype)
            torch.autograd.grad(loss, parameters)

        return median_ms(as_graph(run))

    rows = []
    for unit in ("fp32", "tf32"):
        with tf32(unit == "tf32"):
            rows += [
                Row(f"{name}, {unit}", "fast, captured", ms(True), moved, flop, unit),
                Row(f"{name}, {unit}", "plain autograd, captured", ms(False), moved, flop, unit),
            ]
    half = ms(True, torch.float16)  # whose products are as fast as bfloat16's
    rows.append(Row(f"{name}, half", "fast, captured", half, moved / 2, flop, "bf16"))
    return rows


def value() -> Table:
    rows = [row for values in ("scalar", "two-hot") for row in _value(values)]
    note = (
        "Five critics and an actor with two layers of 256 units, a batch of 512: targets, losses, gradients, "
        "Adam and moving averages, captured, with TF32 as in training. A batch is drawn before. Bytes: the "
        "weights read, their gradients and Adam's averages read and written. Operations: the products."
    )
    return Table("value", "One update of the value", note, rows)


def _value(values: str) -> list[Row]:
    config = ValueConfig(values=values, gamma=0.98)
    networks = config.value(RSSM(OBS, ACTIONS, RSSMConfig()), 0)
    critics, actor = (
        sum(p.numel() for p in part.parameters()) for part in (networks.critics, networks.actor)
    )
    moved = 4.0 * 10 * (critics + actor)
    # Critics: targets, losses forward and backward, and the actor's loss forward and back to its actions.
    flop = 2.0 * config.batch * (6 * critics + 4 * actor)
    return [
        Row(f"{values} values", what, _value_ms(config, devices), moved, flop, "tf32")
        for what, devices in (("plain torch", ()), ("fused", ("cuda",)))
    ]


def _value_ms(config: ValueConfig, devices: tuple[str, ...]) -> float:
    generator = torch.Generator("cuda").manual_seed(0)
    model = RSSM(OBS, ACTIONS, RSSMConfig()).cuda()
    replay = ReplayBuffer(16, 1000, OBS, ACTIONS, "cuda", shortest_episode=4)
    for _ in range(500):
        over = torch.zeros(16, dtype=torch.bool, device="cuda")
        replay.add(draw(16, OBS), draw(16, ACTIONS).tanh(), draw(16), draw(16, OBS), over)
    networks = config.value(model, 0).cuda()
    networks_of, steps_of = (
        mock.patch.object(module, "DEVICES", devices) for module in (mlp.mlp_triton, descent.descent_triton)
    )
    with tf32(True), networks_of, steps_of:
        learner = ValueLearner(networks, model, replay, config, generator)
        for _ in range(10):  # the first are not captured
            learner.update()
        return median_ms(learner.update)

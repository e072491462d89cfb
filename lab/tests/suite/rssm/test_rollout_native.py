"""Plans on the CPU in C++: the numbers of the model's own steps, and plain torch where they cannot be."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Generator, Tensor

from dcem import _native
from dcem.control import rollout
from dcem_lab.suite.agents import Planner, PlannerConfig, Value
from dcem_lab.suite.agents import planner as planners
from dcem_lab.suite.agents.guide import Guide
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.rssm.fast import native
from dcem_lab.suite.rssm.fast.native import fits
from dcem_lab.suite.rssm.fast.rollout_native import NativeJudge, NativeRollout

needs_compiler = pytest.mark.skipif(native.library() is None, reason="no C++ compiler here")
needs_bfloat16 = pytest.mark.skipif(
    not fits(torch.zeros(1), torch.bfloat16), reason="no products in bfloat16 here"
)
GUIDED = PlannerConfig(samples=20, elites=5, iterations=3, horizon=4, temperature=0.5, policy_plans=6)


def make(generator: Generator, **changes: object) -> RSSM:
    settings = {"hidden": 37, "width": 50, "members": 3, "pessimism": 0.5, "residual": True, **changes}
    model = RSSM(5, 2, RSSMConfig(predict_std=False, loss="mse", **settings), generator)  # type: ignore[arg-type]
    return model.requires_grad_(False)


def situations(model: RSSM, n: int, samples: int, generator: Generator) -> tuple[Tensor, Tensor]:
    states = torch.randn(n, model.state_dim, generator=generator)
    return states, torch.rand(n, samples, 6, 2, generator=generator) * 2 - 1


def by_steps(model: RSSM, states: Tensor, actions: Tensor, discount: float, end: object = None) -> Tensor:
    spread = states.unsqueeze(1).expand(-1, actions.shape[1], -1)
    return rollout(model, spread, actions, discount, end)  # type: ignore[arg-type]


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "changes",
    [
        {"activation": "gelu"},
        {"activation": "relu", "members": 1, "layers": 1},
        {"activation": "elu", "residual": False, "layers": 3},
        {"activation": "gelu", "memory": False},
        {"activation": "gelu", "hidden": 8, "width": 128},
    ],
)
def test_costs_are_those_of_the_models_steps(changes: dict, threads: int, generator: Generator) -> None:
    model = make(generator, **changes)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for n, samples in ((1, 1), (2, 33), (3, 100)):
            states, actions = situations(model, n, samples, generator)
            for end in (None, lambda state: state.square().sum(dim=-1)):
                got = NativeRollout(model).sequence_cost(states, actions, 0.9, end)
                torch.testing.assert_close(
                    got, by_steps(model, states, actions, 0.9, end), rtol=1e-4, atol=1e-4
                )
    finally:
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_states_and_actions_may_have_another_precision(dtype: torch.dtype, generator: Generator) -> None:
    model = make(generator, activation="gelu")
    value = Value(5, 2, critics=4, width=40, generator=generator).requires_grad_(False)
    given = situations(model, 2, 40, generator)
    states, actions = (x.to(dtype) for x in given)
    judge, observed = NativeJudge(value, 0.5), model.observed
    got = NativeRollout(model).sequence_cost(states, actions, 0.9, lambda state: judge(observed(state)))
    assert got.dtype == dtype
    same = NativeRollout(model).sequence_cost(
        states.float(), actions.float(), 0.9, lambda state: judge(observed(state))
    )
    torch.testing.assert_close(got, same.to(dtype))
    torch.testing.assert_close(judge(observed(states)), judge(observed(states.float())))


@needs_bfloat16
def test_bfloat16_rounds_products_and_nothing_else(generator: Generator) -> None:
    model = make(generator, activation="gelu")
    states, actions = situations(model, 2, 40, generator)
    exact = by_steps(model, states, actions, 1.0)
    got = NativeRollout(model, torch.bfloat16).sequence_cost(states, actions)
    error = (got - exact).abs().max()
    assert 0 < error < 0.05 * exact.std()


@needs_compiler
@pytest.mark.parametrize("pessimism", [0.0, 0.5])
def test_ends_are_worth_what_the_critics_say(pessimism: float, generator: Generator) -> None:
    model = make(generator, activation="gelu")
    value = Value(5, 2, critics=4, width=40, generator=generator).requires_grad_(False)
    states = torch.randn(2, 35, model.state_dim, generator=generator)
    guide = Guide(value, model, pessimism)
    judge = NativeJudge(value, pessimism)
    torch.testing.assert_close(judge(guide.model.observed(states)), guide.worth(states), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        value.critics.biases[-1].add_(1.0)
    before = judge(guide.model.observed(states))
    judge.refresh()
    torch.testing.assert_close(judge(guide.model.observed(states)) - before, torch.full((2, 35), 10.0))


@needs_compiler
def test_a_plan_is_that_of_plain_torch(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(generator, activation="gelu")
    value = Value(5, 2, critics=3, width=16, gamma=0.9, generator=generator)
    states, noise = torch.randn(4, model.state_dim, generator=generator), torch.randn(3, 4, 20, 8)
    fast = Planner(model, GUIDED, value=value)
    assert isinstance(fast._imagination, NativeRollout)
    monkeypatch.setattr(planners, "has_kernels", lambda *_: False)
    plain = Planner(model, GUIDED, value=value)
    assert not isinstance(plain._imagination, NativeRollout)
    torch.testing.assert_close(fast(states, noise), plain(states, noise), rtol=1e-4, atol=1e-4)


@needs_compiler
def test_planners_can_be_copied_and_pickled(generator: Generator) -> None:
    model = make(generator, activation="gelu")
    value = Value(5, 2, critics=3, width=16, gamma=0.9, generator=generator)
    states, noise = torch.randn(4, model.state_dim, generator=generator), torch.randn(3, 4, 20, 8)
    plan = Planner(model, GUIDED, value=value)
    assert torch.equal(copy.deepcopy(plan)(states, noise), plan(states, noise))
    imagination, judge = pickle.loads(pickle.dumps((plan._imagination, plan._judge)))
    assert torch.equal(
        imagination.sequence_cost(states, noise.transpose(0, 1)[..., :2]),
        plan._imagination.sequence_cost(states, noise.transpose(0, 1)[..., :2]),
    )
    x = states[:, :15].unflatten(-1, (3, 5))
    assert torch.equal(judge(x), plan._judge(x))


@needs_bfloat16
def test_a_planner_takes_bfloat16_where_it_is_asked_to(generator: Generator) -> None:
    model = make(generator, activation="gelu")
    states, noise = torch.randn(4, model.state_dim, generator=generator), torch.randn(3, 4, 20, 8)
    plans = {
        dtype: Planner(model, PlannerConfig(20, 5, 3, horizon=4, dtype=dtype))(states, noise)
        for dtype in ("float32", "float16", "bfloat16")
    }
    assert torch.equal(plans["float16"], plans["float32"])  # slow here
    assert not torch.equal(plans["bfloat16"], plans["float32"])
    torch.testing.assert_close(plans["bfloat16"], plans["float32"], rtol=0, atol=0.2)


def test_models_that_know_an_end_or_are_not_float32_stay_with_torch(generator: Generator) -> None:
    config = PlannerConfig(20, 5, 3, horizon=4, dtype="bfloat16")
    for model in (make(generator, termination=True), make(generator).double()):
        plan = Planner(model, config)
        assert not isinstance(plan._imagination, NativeRollout)
        state = torch.randn(2, model.state_dim, dtype=next(model.parameters()).dtype)
        assert plan(state).shape == (2, 2)


def test_without_kernels_there_is_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCEM_NATIVE", "0")
    assert _native.build(native._SOURCE, []) is None
    monkeypatch.setattr(native, "library", lambda: None)
    assert not fits(torch.zeros(1))


@needs_compiler
def test_cpus_without_long_vectors_have_kernels_too(generator: Generator, monkeypatch) -> None:
    model = make(generator, activation="gelu")
    states, actions = situations(model, 2, 33, generator)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    shorter = native.library.__wrapped__()
    assert shorter is not None and not shorter.has_bfloat16()
    monkeypatch.setattr(native, "library", lambda: shorter)
    got = NativeRollout(model).sequence_cost(states, actions)
    torch.testing.assert_close(got, by_steps(model, states, actions, 1.0), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="dtype must be float32 on a CPU without instructions for bfloat16"):
        NativeRollout(model, torch.bfloat16)
    by_default, asked = (
        Planner(model, PlannerConfig(20, 5, 3, horizon=4, dtype=dtype)) for dtype in ("float32", "bfloat16")
    )
    noise = torch.randn(3, 2, 20, 8, generator=generator)
    assert torch.equal(asked(states, noise), by_default(states, noise))

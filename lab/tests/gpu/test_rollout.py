"""The fused rollout against steps of the model itself."""

import math

import pytest
import torch
from torch import Tensor

import dcem
from dcem.control import rollout
from dcem_lab.suite.rssm import RSSM, RSSMConfig

pytestmark = pytest.mark.gpu

HALF = 4e-3  # half precision, relative to costs that may nearly cancel


def make(obs_dim: int = 17, action_dim: int = 6, seed: int = 0, **config) -> tuple[RSSM, object]:
    from dcem_lab.suite.rssm.fast.rollout_triton import FusedRollout

    generator = torch.Generator().manual_seed(seed)
    model = RSSM(obs_dim, action_dim, RSSMConfig(**config), generator).cuda()
    return model, FusedRollout(model)


def problem(model: RSSM, batch: tuple[int, ...], n: int, horizon: int) -> tuple[Tensor, Tensor]:
    def draw(size: int) -> Tensor:
        return torch.randn(*batch, size, device="cuda")

    state = model.initial(draw(model.obs_dim))
    with torch.no_grad():
        state = model.observe(state, draw(model.action_dim), draw(model.obs_dim))
    return state, 2 * torch.rand(*batch, n, horizon, model.action_dim, device="cuda") - 1


@torch.no_grad()
def oracle(model: RSSM, state: Tensor, actions: Tensor) -> Tensor:
    states = state.unsqueeze(-2).expand(*actions.shape[:-2], state.shape[-1])
    return rollout(model, states, actions)


def error(got: Tensor, expected: Tensor) -> float:
    assert got.shape == expected.shape
    return ((got - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("activation", ["relu", "elu", "gelu"])
@pytest.mark.parametrize("residual", [False, True])
def test_same_costs_as_the_model(members: int, activation: str, residual: bool) -> None:
    model, fused = make(members=members, activation=activation, residual=residual, pessimism=0.5)
    state, actions = problem(model, (3,), 57, 12)
    assert error(fused.sequence_cost(state, actions), oracle(model, state, actions)) < HALF


# One case for each launch shape, and for each way in which a size may not divide evenly.
@pytest.mark.parametrize(
    ("batch", "n", "horizon", "hidden", "width", "obs_dim", "action_dim"),
    [
        ((), 1, 1, 200, 200, 17, 6),
        ((), 100, 12, 200, 200, 17, 6),
        ((3,), 1001, 5, 200, 200, 24, 6),
        ((7,), 1001, 3, 200, 200, 17, 6),
        ((2, 9), 1001, 2, 200, 200, 17, 6),
        ((5,), 33, 7, 256, 256, 26, 6),
        ((3,), 41, 4, 130, 155, 5, 1),
        ((3,), 5001, 4, 128, 129, 1, 1),
        ((3,), 41, 4, 130, 165, 58, 6),
        ((9,), 1001, 2, 256, 256, 58, 6),
    ],
)
def test_any_size(batch, n, horizon, hidden, width, obs_dim, action_dim) -> None:
    model, fused = make(obs_dim, action_dim, members=2, hidden=hidden, width=width, residual=True)
    state, actions = problem(model, batch, n, horizon)
    assert error(fused.sequence_cost(state, actions), oracle(model, state, actions)) < HALF


@pytest.mark.parametrize(
    ("tile", "block", "warps", "batch", "n", "hidden", "width", "members"),
    [
        (16, 64, 8, (), 100, 200, 200, 1),
        (32, 64, 8, (), 1000, 200, 200, 1),
        (16, 32, 4, (3,), 37, 200, 200, 2),
        (16, 64, 8, (5,), 33, 256, 256, 1),
        (16, 64, 8, (2,), 41, 130, 155, 3),
        (32, 64, 8, (7,), 500, 200, 200, 1),
    ],
)
def test_teams(monkeypatch, tile, block, warps, batch, n, hidden, width, members) -> None:
    from dcem_lab.suite.rssm.fast import rollout_triton as rssm_triton

    shape = rssm_triton.Shape(tile, block, 0, warps, 2, team=True)
    monkeypatch.setattr(rssm_triton, "IN_TEAMS", [(math.inf, shape)])
    model, fused = make(activation="gelu", residual=True, hidden=hidden, width=width, members=members)
    for horizon in (1, 2, 12):
        state, actions = problem(model, batch, n, horizon)
        expected = oracle(model, state, actions)
        got = [fused.sequence_cost(state, actions) for _ in range(20)]
        assert error(got[0], expected) < HALF
        assert all(torch.equal(other, got[0]) for other in got[1:])


@pytest.mark.parametrize("activation", ["relu", "elu", "gelu"])
def test_a_row_does_not_depend_on_its_neighbours(activation: str) -> None:
    model, fused = make(activation=activation)
    state, actions = problem(model, (4,), 37, 5)
    together = fused.sequence_cost(state, actions)
    alone = torch.stack([fused.sequence_cost(s, a) for s, a in zip(state, actions, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    poisoned = actions.clone()
    poisoned[1, 5] = torch.nan
    got = fused.sequence_cost(state, poisoned)
    assert got.isnan().sum() == 1 and got[1, 5].isnan()


def test_leftovers_in_memory_do_not_matter() -> None:
    model, fused = make(hidden=130, width=141)
    state, actions = problem(model, (3,), 41, 6)
    expected = fused.sequence_cost(state, actions)
    junk = torch.full((1 << 24,), torch.nan, device="cuda")
    del junk  # the kernels' buffers come out of it
    assert torch.equal(fused.sequence_cost(state, actions), expected)


def test_a_captured_rollout_sees_new_inputs_and_refreshed_weights() -> None:
    model, fused = make(members=2, pessimism=0.5)
    captured = dcem.capture(fused.sequence_cost)
    for _ in range(3):
        state, actions = problem(model, (2,), 100, 12)
        assert error(captured(state, actions), oracle(model, state, actions)) < HALF
        fused.sequence_cost(*problem(model, (2,), 100, 12))  # must not share memory with the graph
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.8)
        assert error(captured(state, actions), oracle(model, state, actions)) > 1e-2
        fused.refresh()
        assert error(captured(state, actions), oracle(model, state, actions)) < HALF


def test_plans_as_the_model_does() -> None:
    model, fused = make(activation="gelu", residual=True)
    solver = dcem.DCEM(n_samples=400, n_elite=40, n_iters=5, tau=1.0)
    state, _ = problem(model, (4,), 1, 1)
    noise = torch.randn(5, 4, 400, 12 * 6, device="cuda")
    with torch.no_grad():
        plans = [dcem.MPC(m, horizon=12, solver=solver).cuda()(state, noise=noise) for m in (model, fused)]
    torch.testing.assert_close(plans[1].actions, plans[0].actions, rtol=0, atol=2e-2)
    torch.testing.assert_close(plans[1].cost, plans[0].cost, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    "config", [{"layers": 1}, {"hidden": 300}, {"width": 300}, {"hidden": 32}, {"obs_dim": 60}]
)
def test_models_it_cannot_take(config: dict) -> None:
    with pytest.raises(ValueError, match="FusedRollout: model must have 2 layers"):
        make(**config)


def test_arguments_that_do_not_fit() -> None:
    model, fused = make()
    state, actions = problem(model, (2,), 5, 3)
    with pytest.raises(ValueError, match="sequence_cost: state must be"):
        fused.sequence_cost(state[:1], actions)

"""What nobody would do on purpose: every step of the pipeline ends in a clear error or a sane answer."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from dcem import DCEM, MPC, MPPI, Gaussian, GradientDescent, minimize
from dcem_lab.runs import Run, read_record, read_records
from dcem_lab.suite import planet
from dcem_lab.suite.agents import PlannerConfig
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from toy.environment import Plane

SMALL = {"n_samples": 20, "n_elite": 4, "n_iters": 3}


class System:
    """x' = x + u / 10 and a quadratic cost, unless told otherwise."""

    action_dim = 1

    def __init__(
        self, dynamics=lambda x, u: x + 0.1 * u, cost=lambda x, u: (x.square() + u.square()).sum(-1)
    ):
        self.dynamics, self.cost = dynamics, cost

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return self.dynamics(state, action), self.cost(state, action)


def plan(system: System | None = None, horizon: int = 5, states: Tensor | None = None, **solver: object):
    states = torch.ones(3, 1) if states is None else states
    mpc = MPC(system or System(), horizon, -1.0, 1.0, solver=DCEM(**{**SMALL, **solver}))
    return mpc(states)


# Planning


@pytest.mark.parametrize(
    "solver",
    [
        {"n_samples": 1, "n_elite": 1},
        {"n_elite": 1},
        {"n_elite": 20},
        {"n_elite": 0.5},
        {"tau": 0.0},
        {"tau": 1e-30},
        {"tau": 1e30},
        {"n_iters": 1},
        {"n_iters": 200},
    ],
)
def test_extreme_but_allowed_searches_stay_in_the_box(solver):
    found = plan(**solver)
    assert found.cost.isfinite().all()
    assert (found.actions.abs() <= 1).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"horizon": 0}, "horizon must be a positive integer, got 0"),
        ({"n_samples": 0}, "n_samples must be a positive integer"),
        ({"n_elite": 0}, "n_elite must satisfy 0 < n_elite"),
        ({"n_elite": 21}, "n_elite must satisfy .* got 21"),
        ({"n_iters": 0}, "n_iters must be a positive integer"),
        ({"tau": math.nan}, "tau must be >= 0, got nan"),
        ({"states": torch.full((3, 1), math.nan)}, "finite value in every row.* row 0"),
        ({"states": torch.tensor([[0.0], [math.inf], [0.0]])}, "finite value in every row.* row 1"),
    ],
)
def test_impossible_plans_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        plan(**change)


def test_a_huge_horizon_is_only_slow():
    assert plan(horizon=2_000, n_iters=1).cost.isfinite().all()


@pytest.mark.parametrize("value", [0.0, 1e-38, -1e30])
def test_a_constant_cost_leaves_the_search_where_chance_takes_it(value):
    system = System(cost=lambda x, u: torch.full(x.shape[:-1], value))
    found = plan(system)
    assert found.actions.isfinite().all()
    assert (found.actions.abs() <= 1).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_cost_without_a_number_is_named(value):
    with pytest.raises(
        ValueError, match="finite value in every row, but all 20 are NaN or infinite in row 0"
    ):
        plan(System(cost=lambda x, u: torch.full(x.shape[:-1], value)))


def test_a_model_that_explodes_everywhere_is_named():
    with pytest.raises(ValueError, match="finite value in every row"):
        plan(System(dynamics=lambda x, u: (x + u) * 1e3), horizon=200)


def test_a_model_that_explodes_for_some_actions_is_steered_clear_of():
    """Samples with a large action overflow; the plan avoids them."""
    system = System(dynamics=lambda x, u: torch.where(u > 0.3, math.inf, 0.5 * x))
    found = plan(system, n_samples=200, n_elite=20, n_iters=8, horizon=3)
    assert found.cost.isfinite().all()
    assert (found.actions < 0.3).all()


@pytest.mark.parametrize(
    "solver", [DCEM(**SMALL), DCEM(**{**SMALL, "n_elite": 1}), MPPI(n_samples=20, n_iters=3)]
)
@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1.0, 1e8, 1e30])
def test_gradients_are_finite_whatever_the_scale_of_the_costs(solver, scale):
    target = torch.tensor([0.3], requires_grad=True)
    x = minimize(lambda x: scale * (x - target).square().sum(-1), solver, torch.zeros(2, 1)).x
    assert torch.autograd.grad(x.sum(), target)[0].isfinite().all()


def test_gradient_descent_that_explodes_is_named():
    with pytest.raises(ValueError, match="finite value in every row"):
        solver = GradientDescent(n_iters=20, learning_rate=10.0)
        minimize(lambda x: 1e10 * (x**4).sum(-1), solver, torch.ones(2, 1))


def test_samples_all_on_one_bound_have_finite_gradients():
    weight = torch.tensor(1.0, requires_grad=True)
    solver = DCEM(**SMALL, distribution=Gaussian(sigma=100.0, bounds=(-1e-6, 1e-6)))
    x = minimize(lambda x: weight * x.sum(-1), solver, torch.zeros(2, 3)).x
    assert x.isfinite().all()
    assert torch.autograd.grad(x.sum(), weight)[0].isfinite()


def test_an_empty_batch_is_an_empty_answer():
    assert plan(states=torch.ones(0, 1)).actions.shape == (0, 5, 1)


@pytest.mark.parametrize("change", [{"samples": 1, "elites": 1}, {"elites": 1}, {"horizon": 300}])
def test_the_agents_planner(change):
    model = RSSM(3, 1, RSSMConfig(hidden=8, width=8))
    planner = PlannerConfig(**{"samples": 20, "elites": 4, "iterations": 2, "horizon": 3, **change})
    mpc = MPC(model, planner.horizon, solver=planner.solver(), action_dim=1)
    with torch.no_grad():
        assert mpc(model.initial(torch.zeros(2, 3))).actions.isfinite().all()


# Training an agent


class Odd(Plane):
    """The plane, with rewards and observations of another kind."""

    def __init__(self, reward, observation=lambda x: x, **options):
        super().__init__(length=20, **options)
        self.reward, self.observation = reward, observation

    def step(self, action):
        x, reward, *rest = super().step(action)
        return np.float32(self.observation(x)), self.reward(reward, self._steps_left), *rest


def train(folder, monkeypatch, reward, observation=lambda x: x, **changes: object) -> list[dict[str, float]]:
    """A tiny agent on such an environment; returns its log."""
    monkeypatch.setattr(planet, "make_env", lambda *_, **options: Odd(reward, observation, **options))
    config = planet.Config(**{**planet.PRESETS["tiny"], **changes})
    loop = replace(config.loop, env_steps=120, eval_every=120, log_every=10)
    config = replace(config, loop=loop, collecting=replace(config.collecting, seed_episodes=1))
    with Run(folder, config, tensorboard=False, bar=False) as run:
        planet.run(config, run)
    return read_records(folder / "log.jsonl")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_ends_the_run_and_says_where(value, tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match=f"environment 0 gave a reward of {value} at step 13"):
        train(tmp_path, monkeypatch, lambda reward, left: value if left == 7 else reward)
    assert f"gave a reward of {value}" in read_record(tmp_path)["error"]


def test_an_observation_that_is_no_number_ends_the_run_and_says_where(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="environment 0 gave a non-finite observation at step"):
        train(tmp_path, monkeypatch, lambda reward, _: reward, lambda x: x + math.nan)


@pytest.mark.parametrize("value", [0.0, 1e6, -1e6])
def test_constant_rewards_are_learned_without_harm(value, tmp_path, monkeypatch):
    log = train(tmp_path, monkeypatch, lambda *_: value)
    assert all(math.isfinite(number) for row in log for number in row.values())
    assert log[-1]["eval/mean"] == pytest.approx(20 * value)


def test_a_model_that_diverges_ends_the_run(tmp_path, monkeypatch):
    with pytest.raises((ValueError, FloatingPointError), match=r"finite|diverged"):
        train(tmp_path, monkeypatch, lambda reward, _: reward, lr=1e30)
    assert read_record(tmp_path)["status"] == "failed"


@pytest.mark.parametrize("planner", [{"samples": 1, "elites": 1}, {"elites": 1}, {"horizon": 1}])
def test_extreme_planners_still_train(planner, tmp_path, monkeypatch):
    extreme = PlannerConfig(**{"samples": 20, "elites": 4, "iterations": 2, "horizon": 4, **planner})
    log = train(tmp_path, monkeypatch, lambda reward, _: reward, planner=extreme, evaluation=extreme)
    assert math.isfinite(log[-1]["eval/mean"])

"""Plans under several models: measures of risk by brute force, and what a plan then does."""

import itertools

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from dcem import DCEM, MPC
from dcem.control import CVaR, PolicyProposals, closed_loop, rollout
from dcem.systems import Pendulum

D = torch.float64
SOLVER = DCEM(n_samples=20, n_elite=5, n_iters=4, tau=0.8)
GRAVITIES = (8.0, 10.0, 13.0)
RISKS = {"mean": "mean", "worst": "worst", "CVaR": CVaR(0.5), "function": lambda c: c.mean(-1) + c.std(-1)}


def states(*batch: int) -> torch.Tensor:
    return Pendulum.initial_states(*batch, generator=torch.Generator().manual_seed(0), dtype=D)


def pendulums(values=GRAVITIES) -> list[Pendulum]:
    return [Pendulum(gravity=g) for g in values]


def controller(model, **settings) -> MPC:
    return MPC(model, 6, -2.0, 2.0, solver=SOLVER, **settings).double()


class Together:
    """The same pendulums as one model: its states have a dimension for the members, its costs too."""

    action_dim = 1

    def __init__(self, gravities) -> None:
        self.each = Pendulum(gravity=torch.tensor(gravities, dtype=D))

    def step(self, state, action):
        if state.shape[-1] == 3:  # the first step, from one state for all of them
            state = state.unsqueeze(-2).expand(*state.shape[:-1], len(GRAVITIES), 3).flatten(-2)
        state, cost = self.each.step(state.unflatten(-1, (-1, 3)), action.unsqueeze(-2))
        return state.flatten(-2), cost


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.25, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_cvar_is_the_least_of_rockafellar_and_uryasev(alpha, count):
    """CVaR = min_c c + E[(v − c)⁺] / alpha, at one of the values."""
    values = torch.randn(7, count, dtype=D)
    candidates = [c + (values - c).clamp_min(0).mean(-1, keepdim=True) / alpha for c in values.split(1, -1)]
    expected = torch.stack(candidates).amin(0).squeeze(-1)
    torch.testing.assert_close(CVaR(alpha)(values), expected)


def test_cvar_has_mean_and_worst_as_its_ends():
    values = torch.randn(7, 5, dtype=D)
    torch.testing.assert_close(CVaR(1.0)(values), values.mean(-1))
    torch.testing.assert_close(CVaR(0.2)(values), values.amax(-1))
    torch.testing.assert_close(CVaR(1e-3)(values), values.amax(-1))
    assert gradcheck(CVaR(0.5), values.clone().requires_grad_())


@pytest.mark.parametrize("risk", RISKS.values(), ids=RISKS)
def test_the_cost_of_a_plan_is_the_risk_of_its_costs(risk):
    def end(s):
        return 2 * s[..., 2].square()

    mpc = controller(pendulums(), risk=risk, discount=0.9, terminal_cost=end)
    plan = mpc(states(3))
    costs = [rollout(model, states(3), plan.actions, 0.9, end) for model in pendulums()]
    by_hand = {
        "mean": lambda c: sum(c) / 3,
        "worst": lambda c: torch.stack(c).amax(0),
        "CVaR": lambda c: torch.stack([(2 * max(v) + sorted(v)[1]) / 3 for v in torch.stack(c, -1)]),
        "function": lambda c: torch.stack(c).mean(0) + torch.stack(c).std(0),
    }
    name = next(key for key, value in RISKS.items() if value is risk)
    torch.testing.assert_close(plan.cost, by_hand[name](costs))


@pytest.mark.parametrize("risk", RISKS.values(), ids=RISKS)
def test_one_model_with_members_is_the_same_as_a_list(risk):
    epsilon = torch.randn(4, 3, 20, 6, dtype=D)
    apart = controller(pendulums(), risk=risk)(states(3), noise=epsilon)
    together = controller(Together(GRAVITIES), risk=risk)(states(3), noise=epsilon)
    torch.testing.assert_close(apart.actions, together.actions)
    torch.testing.assert_close(apart.cost, together.cost)


@pytest.mark.parametrize("risk", RISKS.values(), ids=RISKS)
def test_a_batch_is_planned_as_one_at_a_time(risk):
    mpc = controller(pendulums(), risk=risk)
    epsilon = torch.randn(4, 2, 3, 20, 6, dtype=D)
    together = mpc(states(2, 3), noise=epsilon)
    for i, j in itertools.product(range(2), range(3)):
        alone = mpc(states(2, 3)[i, j], noise=epsilon[:, i, j])
        torch.testing.assert_close(together.actions[i, j], alone.actions)


@pytest.mark.parametrize("risk", RISKS.values(), ids=RISKS)
def test_gradients_by_finite_differences(risk):
    epsilon = torch.randn(4, 20, 6, dtype=D)

    def plan(gravities, state):
        found = controller(pendulums(gravities), risk=risk)(state, noise=epsilon)
        return found.actions, found.cost

    gravities = torch.tensor(GRAVITIES, dtype=D, requires_grad=True)
    state = torch.tensor([-0.7, 0.6, 0.3], dtype=D, requires_grad=True)
    assert gradcheck(plan, (gravities, state), eps=1e-7, atol=1e-4, rtol=1e-3)


class Cliff:
    """One step: the further the cheaper, up to a cliff whose place the models disagree on."""

    action_dim = 1

    def __init__(self, edge: float) -> None:
        self.edge = edge

    def step(self, state, action):
        u = action[..., 0]
        return state, -u + 20 * (u - self.edge).clamp_min(0)


@pytest.mark.parametrize(("risk", "expected"), [("mean", 0.5), ("worst", 0.2), (CVaR(0.05), 0.2)])
def test_the_more_averse_the_further_from_the_cliff(risk, expected):
    """Edges at 0.2 (one of forty) and 0.5: the mean accepts a risk (slope −1 + 20 / 40) that others avoid."""
    models = [Cliff(0.2)] + [Cliff(0.5)] * 39
    solver = DCEM(n_samples=200, n_elite=10, n_iters=15, tau=0)
    plan = MPC(models, 1, solver=solver, risk=risk)(torch.zeros(1))
    assert plan.action.item() == pytest.approx(expected, abs=0.02)


def test_modules_of_an_ensemble_are_the_controllers_and_the_mean_is_the_default():
    class Learned(nn.Module):
        action_dim = 1

        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 2)

        def step(self, state, action):
            state = self.net(torch.cat([state, action], -1))
            return state, state.square().sum(-1)

    mpc = MPC([Learned(), Learned()], 3, solver=SOLVER, proposals=PolicyProposals(lambda s: s[..., :1]))
    assert len(list(mpc.parameters())) == 4
    plan = mpc(torch.ones(4, 2))
    expected = sum(rollout(m, torch.ones(4, 2), plan.actions) for m in mpc.model) / 2
    torch.testing.assert_close(plan.cost, expected)
    plan.cost.sum().backward()
    assert all(p.grad is not None for p in mpc.parameters())


def test_what_is_wrong_is_named():
    with pytest.raises(ValueError, match=r"risk must be 'mean', 'worst', CVaR.*, got 'median'"):
        controller(pendulums(), risk="median")
    with pytest.raises(ValueError, match=r"risk needs several models, or costs of shape \(3, 20, E\)"):
        controller(Pendulum(), risk="worst")(states(3))
    with pytest.raises(ValueError, match="alpha must satisfy 0 < alpha <= 1, got 0"):
        CVaR(0)
    with pytest.raises(ValueError, match="model must be a model or several of them, got none"):
        controller([])
    with pytest.raises(ValueError, match="system must be given where the controller has several models"):
        closed_loop(controller(pendulums()), states(2), 1)
    assert closed_loop(controller(pendulums()), states(2), 1, system=Pendulum()).costs.shape == (1, 2)

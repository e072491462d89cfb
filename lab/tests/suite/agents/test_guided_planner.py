"""Plans with a value at their end and a policy's plans among their candidates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from dcem import Decoder
from dcem.control import rollout
from dcem_lab.suite.agents import Planner, PlannerConfig, Value
from dcem_lab.suite.agents.guide import Guide, Situation
from dcem_lab.suite.agents.residual_decoder import EDGE, ResidualDecoder, stored_decoder
from dcem_lab.suite.agents.search import WeightedElites
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.rssm.fast.imagine import FrozenRollout

CONFIG = PlannerConfig(
    samples=20, elites=5, iterations=3, horizon=4, temperature=0.5, least_sigma=0.05, policy_plans=6
)
MODEL = RSSMConfig(
    hidden=8,
    width=8,
    members=2,
    pessimism=0.5,
    predict_std=False,
    loss="mse",
    residual=True,
    activation="gelu",
)


def make(seed: int = 0) -> tuple[RSSM, Value]:
    generator = Generator().manual_seed(seed)
    model = RSSM(3, 2, MODEL, generator)
    return model, Value(3, 2, critics=3, width=16, gamma=0.9, generator=generator)


def states(model: RSSM, n: int = 3) -> Tensor:
    return model.initial(torch.randn(n, 3, generator=Generator().manual_seed(5)))


@pytest.mark.usefixtures("double")
def test_a_batch_of_plans_is_a_loop_of_them() -> None:
    """In float64: in float32, matrix products of other sizes round differently, and elites amplify it."""
    model, value = make()
    noise, start = torch.randn(3, 4, 20, 8), states(model, 4)
    plan = Planner(model, CONFIG, value=value)
    together = plan(start, noise)
    alone = [plan(start[i : i + 1], noise[:, i : i + 1]) for i in range(4)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_the_same_noise_gives_the_same_plan_and_a_generator_new_ones() -> None:
    model, value = make()
    plan, start = Planner(model, CONFIG, generator=Generator().manual_seed(0), value=value), states(model)
    noise = torch.randn(3, 3, 20, 8)
    assert torch.equal(plan(start, noise), plan(start, noise))
    assert not torch.equal(plan(start), plan(start))


def test_the_search_by_hand() -> None:
    """All of a plan once more, for one state, without the library."""
    model, value = make()
    noise, start = torch.randn(3, 1, 20, 8), states(model, 1)
    got = Planner(model, CONFIG, value=value)(start, noise)

    def worth(state: Tensor) -> Tensor:
        found = [value(x, value.actor(x)) for x in (m[..., 8:] for m in state.chunk(2, dim=-1))]
        q = torch.cat(found)
        return q.mean(dim=0) - 0.5 * q.std(dim=0, correction=0)

    def cost(actions: Tensor) -> Tensor:
        n = len(actions)
        return rollout(model, start.expand(n, -1), actions, 0.9, lambda state: -worth(state))

    policy = []
    for k in range(6):
        state, plan = start, []
        for t in range(4):
            x = torch.stack([m[..., 8:] for m in state.chunk(2, dim=-1)]).mean(dim=0)
            epsilon = torch.zeros(2) if k == 0 else 0.2 * noise[0, 0, 14 + k].view(4, 2)[t]
            plan.append((value.actor(x) + epsilon).clamp(-1, 1))
            state, _ = model.step(state, plan[-1])
        policy.append(torch.cat(plan))
    proposed = torch.stack(policy)
    mean, sigma = proposed[0], torch.full((4, 2), 0.5)
    for t in range(3):
        epsilon = noise[t, 0].view(20, 4, 2)
        samples = mean + sigma * epsilon
        if t == 0:
            samples[10:] = epsilon[10:]
        candidates = torch.cat([samples.clamp(-1, 1), proposed])
        costs = cost(candidates)
        best = costs.topk(5, largest=False).indices
        weights = (-costs[best] / (0.5 * costs.std(correction=0))).softmax(dim=0).view(-1, 1, 1)
        mean = (weights * candidates[best]).sum(dim=0)
        sigma = (weights * (candidates[best] - mean).square()).sum(dim=0).sqrt().clamp_min(0.05)
    torch.testing.assert_close(got[0], mean[0], atol=1e-4, rtol=1e-4)


def test_no_iterations_are_the_policy_alone() -> None:
    model, value = make()
    start = states(model)
    plan = Planner(model, replace(CONFIG, iterations=0), value=value)
    torch.testing.assert_close(plan(start), value.actor(start[:, 8:11]))


@pytest.mark.parametrize("alone", [[True, False, True], [True, True, True], [False, False, False]])
@pytest.mark.usefixtures("double")
def test_there_is_no_search_where_the_policy_acts_alone(
    alone: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, value = make()
    start, noise = states(model), torch.randn(3, 3, 20, 8)
    searches = Planner(model, CONFIG, value=value)(start, noise)
    mixed = Planner(model, CONFIG, value=value, by_policy=torch.tensor(alone))
    searched: list[int] = []
    search = mixed._search
    monkeypatch.setattr(
        mixed, "_search", lambda states, noise: searched.append(len(states)) or search(states, noise)
    )
    expected = torch.where(torch.tensor(alone)[:, None], value.actor(start[:, 8:11]), searches)
    torch.testing.assert_close(mixed(start, noise), expected)
    assert sum(searched) == alone.count(False)
    assert mixed(start).shape == (3, 2)

    mixed.turn(4)
    expected = torch.where(
        torch.tensor(alone[-1:] + alone[:-1])[:, None], value.actor(start[:, 8:11]), searches
    )
    torch.testing.assert_close(mixed(start, noise), expected)


def test_a_planner_has_weights_of_its_own() -> None:
    model, value = make()
    plan, start, noise = Planner(model, CONFIG, value=value), states(model), torch.randn(3, 3, 20, 8)
    before = plan(start, noise)
    with torch.no_grad():
        for network in (model, value):
            for parameter in network.parameters():
                parameter.mul_(-1.5)
    assert torch.equal(plan(start, noise), before)
    plan.refresh()
    assert not torch.equal(plan(start, noise), before)
    torch.testing.assert_close(plan(start, noise), Planner(model, CONFIG, value=value)(start, noise))


@pytest.mark.parametrize("tau", [1.0, 0.0])
def test_the_soft_top_k_takes_proposals_too(tau: float) -> None:
    model, value = make()
    plan = Planner(model, replace(CONFIG, temperature=None, tau=tau), value=value)
    assert plan(states(model), torch.randn(3, 3, 20, 8)).abs().max() <= 1


def test_only_the_best_have_weight() -> None:
    values = torch.tensor([[5.0, 1.0, 3.0, torch.nan, 2.0]])
    weights = WeightedElites(n_samples=5, n_elite=2, temperature=0.5).weights(values, t=0)
    assert (weights > 0).tolist() == [[False, True, False, False, True]]
    spread = values[0, [0, 1, 2, 4]].std(correction=0)
    torch.testing.assert_close(weights[0, 1] / weights[0, 4], (1 / (0.5 * spread)).exp())


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("residual", [False, True])
def test_gradients_of_plans_that_end_in_a_value_are_those_of_autograd(residual: bool) -> None:
    """Of the decoder, through fused rollouts and through the model's own steps."""
    model, value = make()
    torch.manual_seed(0)
    decoder = (ResidualDecoder if residual else Decoder)(2, 4, 2, hidden=(8,), activation="gelu")
    config = PlannerConfig(samples=10, elites=3, iterations=3, horizon=4, tau=1.0)
    guide, start = Guide(value, model, config.value_pessimism), states(model)
    noise = torch.randn(3, 3, 10, 2)
    found = []
    for imagination in (FrozenRollout(model), model):
        mpc = config.mpc(model, imagination, decoder, guide=guide)
        situation = config.situation(start, guide, decoder, noise[0])
        assert isinstance(situation, Situation) == residual
        plan = mpc(situation, noise=noise)
        cost = plan.cost.sum() + plan.action.square().sum()
        found.append(torch.autograd.grad(cost, list(decoder.parameters()), retain_graph=True))
    torch.testing.assert_close(*found, rtol=0, atol=1e-10)
    assert max(gradient.abs().max() for gradient in found[0]) > 1e-3


def test_a_residual_decoder_corrects_the_policys_plan() -> None:
    model, value = make()
    decoder = ResidualDecoder(2, 4, 2, hidden=(8,))
    guide, start = Guide(value, model, 0.5), states(model)
    situation = CONFIG.situation(start, guide, decoder, None)
    assert situation.plans.shape == (3, 1, 4, 2)
    with torch.no_grad():
        for parameter in decoder.net[-1].parameters():
            parameter.zero_()
    torch.testing.assert_close(decoder(torch.randn(3, 2), situation), EDGE * situation.plans[:, 0])
    again = stored_decoder(decoder.settings)
    again.load_state_dict(decoder.state_dict())
    assert isinstance(again, ResidualDecoder)
    assert isinstance(stored_decoder(Decoder(2, 4, 2).settings), Decoder)


def test_what_has_no_policy_cannot_start_from_one() -> None:
    model, _ = make()
    with pytest.raises(ValueError, match="value must be given for plans of a policy"):
        Planner(model, CONFIG)
    with pytest.raises(ValueError, match="iterations must be at least 1 without a policy, got 0"):
        PlannerConfig(iterations=0)
    with pytest.raises(ValueError, match="policy_plans must be from 0 to samples=10"):
        PlannerConfig(samples=10, elites=2, policy_plans=11)

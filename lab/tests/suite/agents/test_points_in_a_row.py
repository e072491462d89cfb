"""Plans of several latent points: the decoder's plans in a row, and nothing else changes."""

import pytest
import torch

from dcem import Decoder
from dcem_lab.suite.agents import PlannerConfig
from dcem_lab.suite.agents.planner import Planner
from dcem_lab.suite.agents.points_in_a_row import PointsInARow
from dcem_lab.suite.agents.residual_decoder import ResidualDecoder
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.rssm.fast.imagine import FrozenRollout

PLANNER = PlannerConfig(samples=20, elites=4, iterations=3, horizon=4, tau=0.5, latent_points=3)


@pytest.fixture
def model() -> RSSM:
    return RSSM(3, 2, RSSMConfig(hidden=8, width=8), torch.Generator().manual_seed(0)).requires_grad_(False)


def decoder(**settings: int) -> Decoder:
    torch.manual_seed(0)
    return Decoder(latent_dim=5, horizon=4, action_dim=2, hidden=(16,), **settings)


def test_every_point_is_decoded_on_its_own():
    inner, z = decoder(), torch.randn(6, 7, 15)
    expected = torch.cat([inner(part) for part in z.split(5, dim=-1)], dim=-2)
    assert torch.equal(PointsInARow(inner, 3)(z), expected)


def test_the_cost_is_that_of_the_whole_plan_and_teaches_the_decoder(model):
    inner, states = decoder(), model.initial(torch.randn(5, 3))
    plan = PLANNER.mpc(model, FrozenRollout(model), inner)(states, generator=torch.Generator().manual_seed(0))
    assert plan.actions.shape == (5, 12, 2)
    cost, state = torch.zeros(5), states
    for action in plan.actions.unbind(dim=1):
        state, now = model.step(state, action)
        cost = cost + now
    torch.testing.assert_close(plan.cost, cost)
    for gradient in torch.autograd.grad(plan.cost.mean(), list(inner.parameters())):
        assert gradient.abs().sum() > 0


def test_a_planner_looks_further_with_more_points(model):
    states = model.initial(torch.randn(5, 3))
    found = {}
    for points in (1, 3):
        config = PlannerConfig(samples=20, elites=4, iterations=3, horizon=4, latent_points=points)
        found[points] = Planner(model, config, decoder(), torch.Generator().manual_seed(0))(states)
    assert found[3].shape == found[1].shape == (5, 2)
    assert not torch.equal(found[3], found[1])


def test_it_is_for_decoders_of_z_alone(model):
    with pytest.raises(ValueError, match="latent_points must be 1 without a decoder, got 3"):
        PLANNER.mpc(model, FrozenRollout(model))
    residual = ResidualDecoder(latent_dim=5, horizon=4, action_dim=2)
    for other in (decoder(state_dim=model.state_dim), residual):
        with pytest.raises(ValueError, match="latent_points must be 1 unless the decoder is one of z alone"):
            PLANNER.mpc(model, FrozenRollout(model), other)

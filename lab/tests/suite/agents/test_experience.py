"""What a policy lived through: it is what happened, and stale states of it are filtered again."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from dcem_lab.suite.agents.controller import follow
from dcem_lab.suite.agents.soft_plans import PARTS
from toy.environment import GAIN
from toy.finetuner import E, T, make_agent


def test_what_is_gathered_is_what_happened() -> None:
    """Episodes of five steps, eight steps a call: ends lie within calls and episodes go on across them."""
    agent = make_agent(episode=5, std=0.8)
    model, first = agent.policy.model, agent.gatherer._observations.clone()
    ends = []
    for _ in range(3):
        e = agent.gatherer.gather()
        observations = torch.cat([first[None], e.following[:-1]])
        taken = e.actions.clamp(-1, 1)
        torch.testing.assert_close(e.arrived, observations + GAIN * taken)
        torch.testing.assert_close(e.rewards, -e.arrived.square().sum(-1))
        torch.testing.assert_close(model.decode(e.states), observations)
        torch.testing.assert_close(model.decode(e.reached), e.arrived)
        torch.testing.assert_close(e.reached, model.observe(e.states, taken, e.arrived))
        on = ~e.ended[:-1]
        assert torch.equal(e.states[1:][on], e.reached[:-1][on])
        assert torch.equal(e.states[1:][~on], model.initial(e.following[:-1])[~on])
        assert not e.terminated.any()
        ends.append(e.ended.clone())
        assert len(agent.gatherer.returns) == e.ended.sum()
        first = e.following[-1].clone()
    assert torch.equal(torch.cat(ends).nonzero()[::E, 0], torch.tensor([4, 9, 14, 19]))
    assert (e.actions.abs() > 1).any()  # as they were drawn
    assert 0.5 < (e.actions - e.means).std() < 1.1


def test_stale_states_are_filtered_again() -> None:
    agent = make_agent(episode=5)
    agent.gatherer.gather()
    e = agent.gatherer.gather()
    model = agent.policy.model
    stored = e.states.clone()
    agent.gatherer.filter_again()
    assert torch.equal(e.states, stored)
    with torch.no_grad():
        model.gru.bias += 0.5
    agent.gatherer.filter_again()
    state = stored[0]
    for t in range(T):
        torch.testing.assert_close(e.states[t], state)
        state = follow(model, state, e.actions[t].clamp(-1, 1), e.following[t], e.ended[t])
    assert (e.states - stored).abs().amax(-1).gt(1e-3)[1:].sum() > T  # all but first states of episodes


@pytest.mark.parametrize(
    ("parts", "again", "times"), [(PARTS, True, 3), (PARTS, False, 0), (("decoder", "reward"), True, 0)]
)
def test_states_are_filtered_before_every_later_pass_and_at_the_end(
    parts: tuple[str, ...], again: bool, times: int
) -> None:
    agent = make_agent(parts, passes=3, filter_again=again)
    filter_again, seen = agent.gatherer.filter_again, []

    def counted() -> None:
        seen.append(agent.policy.model.gru.bias.detach().clone())
        filter_again()

    agent.gatherer.filter_again = counted  # type: ignore[method-assign]
    agent.step()
    assert len(seen) == times
    assert not any(torch.equal(a, b) for a, b in combinations(seen, 2))  # updates lie between


@pytest.mark.parametrize("again", [True, False])
def test_filtering_again_is_a_choice_that_matters(again: bool) -> None:
    agent = make_agent(("transition",), lr=1e-2, passes=2, filter_again=again)
    agent.step()
    e, model = agent.gatherer.experience, agent.policy.model
    fresh = torch.allclose(e.reached, model.observe(e.states, e.actions.clamp(-1, 1), e.arrived), atol=1e-6)
    assert fresh == again

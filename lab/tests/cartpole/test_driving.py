"""Training on the states that a closed loop meets."""

import pytest
import torch

from dcem.control import closed_loop
from dcem.systems.cartpole import Cartpole
from dcem_lab.cartpole import driving, shipped, train
from dcem_lab.cartpole.baselines import STRONG, expert_controller
from dcem_lab.cartpole.driving import Carts, LoopValidation


def controller():
    config = train.Config(**train.SMALL, conditioned=True, device="cpu")
    stack = train.DecoderStack([train.new_decoder(train.Member(3, 1.0, seed), config) for seed in (0, 1)])
    return train.controller(stack, [1.0, 1.0], config)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_carts_go_where_a_closed_loop_goes():
    """At first all states are initial ones; then, with hardly any fresh state, plans follow each other."""
    mpc, carts = controller(), Carts(2, 4, 3, fresh=1e-9)
    random, states = seeded(), []
    for _ in range(4):
        state, start = carts.next_states(random)
        states.append(state)
        carts.drive(state, mpc(state, start=start, generator=random))
    again = seeded()
    first, _ = Carts(2, 4, 3, fresh=1e-9).next_states(again)
    plan, path = None, [first]
    for _ in range(3):  # as `closed_loop` does, which draws nothing but the noise
        plan = mpc(path[-1], warm_start=plan, generator=again)
        path.append(Cartpole().step(path[-1], plan.action)[0])
        Carts(2, 4, 3, fresh=1e-9).next_states(again)
    inside = torch.stack(path)[..., 0].abs().amax(0) <= driving.RAIL
    assert inside.any()
    torch.testing.assert_close(torch.stack(states)[:, inside], torch.stack(path)[:, inside])


def test_a_cart_that_ran_away_begins_anew_and_cold():
    carts = Carts(1, 3, 2, fresh=1e-9)
    carts.state.zero_()
    carts.state[0, :, 0] = torch.tensor([driving.RAIL + 0.1, torch.nan, -driving.RAIL + 0.1])
    carts.latent.fill_(0.5)
    state, start = carts.next_states(seeded())
    assert (state[0, :2, 0].abs() <= 0.5).all() and not start[0, :2].any()
    assert torch.equal(state[0, 2], carts.state[0, 2]) and (start[0, 2] == 0.5).all()


@pytest.mark.parametrize("fresh", [0.25, 1.0])
def test_so_many_states_are_random_ones(fresh):
    carts = Carts(1, 4000, 2, fresh)
    carts.state.fill_(2.0)
    state, start = carts.next_states(seeded())
    begins = (state != 2.0).any(-1)
    assert begins.float().mean().item() == pytest.approx(fresh, abs=0.03)
    assert not start[begins].any()


def test_random_states_alone_are_those_of_a_plain_training():
    state, start = Carts(2, 3, 4, fresh=1.0).next_states(seeded())
    assert torch.equal(state, Cartpole.initial_states(2, 3, generator=seeded())) and not start.any()


def test_the_loop_is_validated_on_other_states_than_it_is_reported_on():
    mpc = controller()
    validate = LoopValidation(mpc, 2, 4, torch.device("cpu"))
    costs = validate()
    assert costs.shape == (2,) and torch.equal(costs, validate())
    reported = Cartpole.initial_states(4, generator=seeded())
    assert not torch.isin(validate.states[0], reported).any()
    path = closed_loop(mpc, validate.states, driving.STEPS, generator=seeded(driving.LOOP_SEED))
    torch.testing.assert_close(costs, path.costs.mean(0).mean(-1))


def test_the_paper_s_settings_stay():
    for preset in ({}, train.PRESETS["quick"]):
        config = train.Config(**preset)
        assert config.fresh == 1 and not config.conditioned


def test_first_states_teach_how_to_hold_the_pole_and_not_how_to_stop_a_fast_cart():
    """Why a plain decoder fails in closed loop: upright and slow it plans as well as CEM."""
    spread = torch.tensor([0.3, 0.3, 0.2, 0.5]) * (2 * torch.rand(10, 4, generator=seeded()) - 1)
    costs = {}
    for where, centre in (("held", [0.0, 0.0, 0.0, 0.0]), ("fast", [1.0, 3.0, 0.0, 0.0])):
        x, v, theta, omega = (spread + torch.tensor(centre)).unbind(-1)
        states = torch.stack([x, v, theta.cos(), theta.sin(), omega], -1)
        for mpc in (shipped.load("cartpole-8"), expert_controller(STRONG)):
            with torch.no_grad():
                costs.setdefault(where, []).append(mpc(states, generator=seeded()).cost.mean().item())
    decoder, cem = costs["held"]
    assert decoder == pytest.approx(cem, abs=0.5)
    decoder, cem = costs["fast"]
    assert decoder > cem + 4

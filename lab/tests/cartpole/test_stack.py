"""A stack of decoders, beside the decoders it is made of."""

import pytest
import torch

from dcem import DCEM, MPC, Decoder, Gaussian
from dcem.systems.cartpole import Cartpole
from dcem_lab.cartpole.stack import DecoderStack


def decoders(*dims: int, **changes) -> list[Decoder]:
    settings = {"horizon": 20, "action_dim": 1, "low": -100.0, "high": 100.0, "hidden": (16, 8)} | changes
    return [Decoder(d, **settings).double() for d in dims]


def test_every_row_goes_through_its_own_decoder():
    parts = decoders(2, 5, 3)
    stack = DecoderStack(parts).double()
    z = torch.randn(3, 4, 7, 5, dtype=torch.float64)
    together = stack(z)
    assert together.shape == (3, 4, 7, 20, 1)
    for s, part in enumerate(parts):
        torch.testing.assert_close(together[s], part(z[s, ..., : part.latent_dim]))


def test_decoders_that_see_the_state_each_see_their_own():
    parts = decoders(2, 5, state_dim=5)
    stack = DecoderStack(parts).double()
    z = torch.randn(2, 4, 7, 5, dtype=torch.float64)
    states = Cartpole.initial_states(2, 4, 1, dtype=torch.float64)
    for s, part in enumerate(parts):
        alone = part(z[s, ..., : part.latent_dim], states[s])
        torch.testing.assert_close(stack(z, states)[s], alone)


@pytest.mark.parametrize("state_dim", [0, 5])
def test_unstacking_gives_the_decoders_back(state_dim):
    parts = decoders(2, 5, activation="relu", state_dim=state_dim)
    stack = DecoderStack(parts).double()
    for s, part in enumerate(parts):
        back = stack.decoder(s)
        assert back.settings == part.settings
        for name, value in back.state_dict().items():
            torch.testing.assert_close(value.double(), part.state_dict()[name].double())


def test_planning_with_a_stack_is_planning_with_each():
    parts = decoders(2, 4)
    stack = DecoderStack(parts).double()
    taus = torch.tensor([[1.0], [0.1]], dtype=torch.float64)
    states = Cartpole.initial_states(2, 3, dtype=torch.float64)
    noise = torch.randn(4, 2, 3, 30, 4, dtype=torch.float64)

    def controller(decoder, tau) -> MPC:
        solver = DCEM(n_samples=30, n_elite=5, n_iters=4, tau=tau, distribution=Gaussian(0.5, (-1.0, 1.0)))
        return MPC(Cartpole(), 20, -100.0, 100.0, solver=solver, decoder=decoder)

    together = controller(stack, taus)(states, noise=noise)
    together.cost.sum().backward()
    for s, (part, tau) in enumerate(zip(parts, (1.0, 0.1), strict=True)):
        alone = controller(part, tau)(states[s], noise=noise[:, s, ..., : part.latent_dim])
        torch.testing.assert_close(together.cost[s], alone.cost)
        torch.testing.assert_close(together.actions[s], alone.actions)
        alone.cost.sum().backward()
        first = part.net[0].weight.grad
        torch.testing.assert_close(stack.weights[0].grad[s, : part.latent_dim].mT, first)
        assert not stack.weights[0].grad[s, part.latent_dim :].any()
        torch.testing.assert_close(stack.biases[-1].grad[s, 0], part.net[-1].bias.grad)

"""Algorithm 2's loss: its two paths of gradients, and that following it helps."""

import torch

from dcem import DCEM, MPC, Decoder, Gaussian, backward, embedding_loss
from dcem.systems.pendulum import Pendulum

D = torch.float64
HORIZON = 10


def controller(tau: float, mode: backward.Unroll, seed: int = 0) -> MPC:
    torch.manual_seed(seed)
    decoder = Decoder(2, HORIZON, 1, -2.0, 2.0, hidden=(16,)).double()
    solver = DCEM(n_samples=40, n_elite=5, n_iters=4, tau=tau, distribution=Gaussian(0.5, (-1.0, 1.0)))
    return MPC(Pendulum(), HORIZON, -2.0, 2.0, solver=solver, decoder=decoder, backward=mode).double()


def states(n: int, seed: int = 0) -> torch.Tensor:
    return Pendulum.initial_states(n, generator=torch.Generator().manual_seed(seed), dtype=D)


def gradient(mpc: MPC, generator_seed: int = 1) -> torch.Tensor:
    loss = embedding_loss(mpc, states(5), torch.Generator().manual_seed(generator_seed))
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(mpc.decoder.parameters()))])


def test_it_is_the_mean_cost_of_the_plans():
    mpc = controller(1.0, backward.Unroll())
    plan = mpc(states(5), generator=torch.Generator().manual_seed(1))
    loss = embedding_loss(mpc, states(5), torch.Generator().manual_seed(1))
    torch.testing.assert_close(loss, plan.cost.mean())


def test_the_gradient_is_that_of_finite_differences():
    """Along a random direction in the decoder's weights, with fixed noise."""
    mpc = controller(1.0, backward.Unroll())
    g = gradient(mpc)
    direction = torch.randn(len(g), generator=torch.Generator().manual_seed(2), dtype=D)
    direction /= direction.norm()
    start = nn_vector(mpc)

    def at(step: float) -> float:
        torch.nn.utils.vector_to_parameters(start + step * direction, mpc.decoder.parameters())
        with torch.no_grad():
            return embedding_loss(mpc, states(5), torch.Generator().manual_seed(1)).item()

    slope = (at(1e-6) - at(-1e-6)) / 2e-6
    torch.testing.assert_close((g @ direction).item(), slope, rtol=1e-4, atol=1e-6)


def nn_vector(mpc: MPC) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(mpc.decoder.parameters()).detach()


def test_detaching_cuts_the_path_through_the_search():
    """The same answer, another gradient: that of the cost at a fixed ẑ."""
    whole, cut = (gradient(controller(1.0, mode)) for mode in (backward.Unroll(), backward.Detach()))
    assert not torch.allclose(whole, cut)
    mpc = controller(1.0, backward.Detach())
    plan = mpc(states(5), generator=torch.Generator().manual_seed(1))
    at_answer = mpc.total_cost(plan.latent.detach().unsqueeze(-2), states(5)).mean()
    direct = torch.autograd.grad(at_answer, list(mpc.decoder.parameters()))
    torch.testing.assert_close(cut, torch.cat([g.flatten() for g in direct]))


def test_following_it_lowers_the_cost():
    mpc = controller(1.0, backward.Unroll())
    optimizer = torch.optim.Adam(mpc.decoder.parameters(), 1e-2)
    held_out, generator = states(30, seed=9), torch.Generator().manual_seed(0)

    def cost() -> float:
        with torch.no_grad():
            return embedding_loss(mpc, held_out, torch.Generator().manual_seed(5)).item()

    before = cost()
    for _ in range(60):
        loss = embedding_loss(mpc, Pendulum.initial_states(8, generator=generator, dtype=D), generator)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(mpc.decoder.parameters(), 1.0)
        optimizer.step()
    assert cost() < before - 2

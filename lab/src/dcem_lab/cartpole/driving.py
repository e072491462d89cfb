"""The states that a controller visits in closed loop, for training and evaluation.

Initial states are slow and within half a metre of the centre. A closed loop soon leaves this region: during
the swing-up the cart is far away and fast. A decoder trained only on initial states plans badly there, and
one bad step leads to a state even further from the training data. So, as in DAgger, the decoder is trained on
the states it visits itself: each update plans from the current states of its closed loops, and the first
actions lead to the states of the next update.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from dcem import MPC
from dcem.control import Plan, closed_loop
from dcem.systems.cartpole import Cartpole

STEPS, HELD = 60, 20
UPRIGHT = 0.95  # the least cosine: within 18 degrees
RAIL = 3.0  # from the centre; a cart beyond is reset, because its cost would dominate all others
LOOP_SEED = 3_000_000  # of the states for model selection, separate from those for reporting


def stays_up(states: Tensor) -> Tensor:
    """(T, *B, 5) -> (*B,): upright and near the centre throughout the last second."""
    last = states[-HELD:]
    return ((last[..., 2] > UPRIGHT) & (last[..., 0].abs() < 1)).all(0)


class Carts(nn.Module):
    """The states that the members of a training plan from: random ones, or those their last plans led to.

    Args:
        members, count: S and B.
        latent_dim: d.
        fresh: the fraction of random states; 1, as in the paper, for only these.
    """

    state: Tensor  # (S, B, 5)
    latent: Tensor  # (S, B, d), the last solution, from which a closed loop warm-starts

    def __init__(self, members: int, count: int, latent_dim: int, fresh: float) -> None:
        super().__init__()
        self.fresh = fresh
        self.register_buffer("state", torch.full((members, count, Cartpole.state_dim), torch.inf))
        self.register_buffer("latent", torch.zeros(members, count, latent_dim))

    def next_states(self, generator: Generator) -> tuple[Tensor, Tensor]:
        """States (S, B, 5) and first means of the search (S, B, d)."""
        shape, device = self.state.shape[:2], self.state.device
        new = Cartpole.initial_states(*shape, generator=generator, device=device)
        if self.fresh == 1:
            return new, torch.zeros_like(self.latent)
        begins = torch.rand(*shape, 1, generator=generator, device=device) < self.fresh
        begins |= ~(self.state[..., :1].abs() <= RAIL)  # also resets a state that is not finite
        return torch.where(begins, new, self.state), self.latent.masked_fill(begins, 0.0)

    @torch.no_grad()
    def drive(self, state: Tensor, plan: Plan) -> None:
        """Take the first action of every plan."""
        following, _ = Cartpole().step(state, plan.action)
        self.state.copy_(following)
        self.latent.copy_(plan.latent)


class LoopValidation:
    """The mean cost per step (S,) of every member's closed loop, with the same states and noise each time."""

    def __init__(self, mpc: MPC, members: int, count: int, device: torch.device) -> None:
        random = Generator().manual_seed(LOOP_SEED)
        states = Cartpole.initial_states(count, generator=random).to(device)
        self.mpc, self.states = mpc, states.expand(members, count, Cartpole.state_dim)

    def __call__(self) -> Tensor:
        noise = Generator(self.states.device).manual_seed(LOOP_SEED)
        return closed_loop(self.mpc, self.states, STEPS, generator=noise).costs.mean((0, -1)).cpu()

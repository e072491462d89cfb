"""Action sequences of a policy, as candidates among the samples of a plan."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn

from dcem._checks import check_callable, check_count
from dcem.control.rollout import spread
from dcem.noise import Normal


class PolicyProposals(nn.Module):
    """n rollouts of a policy in the controller's model, for `MPC(proposals=…)`.

        u_t = π(x_t) + sigma ε_t,     x_{t+1} = f(x_t, u_t),     with ε = 0 in the first of them

    A controller draws ε from its generator; where its own noise is fixed, by `noise` or `seed`, so is ε.
    Gradients reach the policy, the model and the state.

    Args:
        policy: state (..., s) -> action (..., m). A module's parameters become parameters of this one.
        n: number of sequences.
        sigma: standard deviation of the noise, in the units of the actions; a number or a tensor (m,).

    >>> from dcem.systems import Pendulum
    >>> damped = PolicyProposals(lambda state: -state[..., 2:], n=8, sigma=0.5)
    >>> mpc = MPC(Pendulum(), horizon=5, low=-2.0, high=2.0, proposals=damped)
    >>> mpc.propose(torch.tensor([1.0, 0.0, 0.1])).shape
    torch.Size([8, 5, 1])
    """

    sigma: Tensor

    def __init__(self, policy: Callable[[Any], Tensor], n: int = 24, sigma: float | Tensor = 0.2) -> None:
        super().__init__()
        check_callable("PolicyProposals: policy", policy)
        check_count("PolicyProposals: n", n)
        self.policy, self.n = policy, n
        self.register_buffer("sigma", torch.as_tensor(sigma, dtype=torch.get_default_dtype()).clone())

    def draw(self, shape: tuple[int, ...], like: Tensor, generator: Generator | None) -> Tensor:
        """ε (*B, n, H, m) for actions of shape (*B, H, m)."""
        *batch, horizon, m = shape
        epsilon = Normal().draw((*batch, self.n - 1, horizon, m), like, generator)
        return torch.cat([like.new_zeros(*batch, 1, horizon, m), epsilon], dim=-3)

    def forward(self, model: Any, state: Any, noise: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Actions (*B, n, H, m) within the bounds, from states (*B, s), for noise of that shape."""
        if not hasattr(model, "step"):
            raise TypeError(f"PolicyProposals: model must have a method step, got {type(model).__name__}")
        state = spread(state, noise.shape[:-2])
        steps = (self.sigma.to(noise) * noise).unbind(-2)
        actions: list[Tensor] = []
        for step in steps:
            if actions:
                state, _ = model.step(state, actions[-1])
            action = self.policy(state)
            if action.shape != step.shape:
                raise ValueError(
                    f"PolicyProposals: policy must return actions of shape {tuple(step.shape)}, "
                    f"got {tuple(action.shape)}"
                )
            actions.append((action + step).clamp(low.to(noise), high.to(noise)))
        return torch.stack(actions, dim=-2)

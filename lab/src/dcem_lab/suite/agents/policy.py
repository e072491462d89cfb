"""The controller as a trainable policy: the planned action is the mean of a Gaussian."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Generator, Tensor, nn

from dcem import Decoder
from dcem.backward import Backward, Unroll
from dcem_lab.suite.agents.planner import Planner, PlannerConfig
from dcem_lab.suite.agents.soft_plans import PARTS, SoftPlans, modules_of
from dcem_lab.suite.agents.value import Value
from dcem_lab.suite.ppo_loss import log_prob
from dcem_lab.suite.rssm import RSSM
from dcem_lab.suite.rssm.nets import EnsembleMLP


class Policy(nn.Module):
    """π(u | s, ε) = N(plan(s, ε), σ²), a function of both the planner's noise ε and the state.

    Planning again with the same noise gives the same mean, and gradients reach everything the plan uses.

    Args:
        model: the world model that imagines.
        decoder: plan in its latent space; None to plan over action sequences.
        planner: how much to plan, softly (tau above 0): a hard top-k passes no gradient.
        backward: how to differentiate a plan.
        std: σ, of every number of an action.
        learn_std: whether σ is a parameter.
        value: critics at the end of a plan, and an actor to start it from; they stay as they are.

    >>> from dcem_lab.suite.rssm import RSSMConfig
    >>> model = RSSM(3, 1, RSSMConfig(hidden=8, width=8))
    >>> policy = Policy(model, None, PlannerConfig(samples=9, elites=2, iterations=2, horizon=4, tau=1.0))
    >>> policy(model.initial(torch.zeros(5, 3)), torch.randn(5, *policy.noise_shape)).shape
    torch.Size([5, 1])
    """

    def __init__(
        self,
        model: RSSM,
        decoder: Decoder | None,
        planner: PlannerConfig,
        backward: Backward = Unroll(),  # noqa: B008 (immutable)
        std: float = 0.1,
        learn_std: bool = False,
        value: Value | None = None,
    ) -> None:
        super().__init__()
        if planner.tau == 0 and planner.temperature is None:
            raise ValueError("planner.tau must be positive for gradients to pass through the search, got 0")
        self.model, self.decoder, self.planner, self._backward = model, decoder, planner, backward
        self.value = value.requires_grad_(False) if value is not None else None
        self._learn(PARTS)
        self.noise_shape = self._plans.noise_shape
        log_std = torch.full((model.action_dim,), math.log(std))
        self.log_std = nn.Parameter(log_std.to(next(model.parameters())), requires_grad=learn_std)

    def _learn(self, parts: Collection[str]) -> None:
        self._plans = SoftPlans(self.model, self.decoder, self.planner, self._backward, self.value, parts)

    def forward(self, states: Tensor, noise: Tensor) -> Tensor:
        """The mean: model states (B, S) and noise (B, T, N, n) → actions (B, m)."""
        return self._plans(states, noise)

    def log_prob(self, actions: Tensor, mean: Tensor) -> Tensor:
        """ln π of actions (B, m), as they were drawn and not clipped, around means (B, m): (B,)."""
        return log_prob(actions, mean, self.log_std)

    def actor(self) -> Planner:
        """A fast planner without gradients for the mean, in the precision of evaluations: call with noise."""
        return Planner(self.model, self.planner, self.decoder, value=self.value)

    def train_only(self, parts: Collection[str]) -> list[nn.Parameter]:
        """Freeze all but these parts (and σ, if it is learned); returns their parameters."""
        chosen = set(parts)
        if self.decoder is None and "decoder" in chosen:
            raise ValueError(
                "parts must not name the decoder of a controller that plans over action sequences, "
                f"got {sorted(chosen)}"
            )
        if self.planner.elites == self.planner.samples and chosen & {"reward", "transition"}:
            raise ValueError(
                f"planner.elites must be below samples={self.planner.samples} where reward or transition "
                "learn: with all samples elite, they do not matter to the plan"
            )
        self._learn(chosen)
        modules = {part: modules_of(part, self.model, self.decoder) for part in PARTS}
        for part, owner in modules.items():
            owner.requires_grad_(part in chosen)
        return [p for part, owner in modules.items() if part in chosen for p in owner.parameters()]


class Critic(nn.Module):
    """V(s), from model states without gradients. A constant reward of one is an output of one of the network.

    Args:
        state_dim: numbers in a model state.
        gamma: γ < 1; the network's output is scaled by 1 / (1 − γ).
        width: units of its two hidden layers.
        generator: where the first weights come from, on the CPU.
    """

    def __init__(self, state_dim: int, gamma: float, width: int, generator: Generator | None = None) -> None:
        super().__init__()
        self.scale = 1 / (1 - gamma)
        self.net = EnsembleMLP([state_dim, width, width, 1], "elu", members=1, generator=generator)

    @torch.no_grad()
    def begin(self, states: Tensor, rewards: Tensor) -> None:
        """Shift all values so that their mean is the value of receiving the mean reward forever.

        Learning this by bootstrapping takes dozens of steps: each leaves γ(1 − λ) / (1 − γλ) of the error.
        Meanwhile, advantages would mostly reflect the distance to the end of the episode.
        """
        self.net.biases[-1].add_(rewards.mean() - self.scaled(states).mean())

    def scaled(self, states: Tensor) -> Tensor:
        """(1 − γ) V: (..., S) → (...), of the size of a reward."""
        return self.net(states.detach().flatten(0, -2).unsqueeze(0)).reshape(states.shape[:-1])

    def forward(self, states: Tensor) -> Tensor:
        """(..., S) → (...)."""
        return self.scale * self.scaled(states)

"""The controller as a trainable policy: the planned action is the mean of a Gaussian."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Generator, Tensor, nn

from dcem import MPC, Decoder
from dcem.backward import Backward, Unroll
from dcem_lab.runs import require
from dcem_lab.suite.agents.guide import Guide
from dcem_lab.suite.agents.planner import DTYPES, Planner, PlannerConfig
from dcem_lab.suite.agents.value import Value
from dcem_lab.suite.ppo_loss import log_prob
from dcem_lab.suite.rssm import RSSM
from dcem_lab.suite.rssm.fast.imagine import FrozenRollout
from dcem_lab.suite.rssm.nets import EnsembleMLP

PARTS = ("decoder", "reward", "transition")
"""The parts of a controller's parameters; its transition is the GRU, the observation head and the termination
head, if there is one."""


def require_parts(parts: tuple[str, ...], at_least: int = 1) -> None:
    """Raise ValueError unless these are some of `PARTS`, and at least this many."""
    known = len(set(parts)) == len(parts) >= at_least and set(parts) <= set(PARTS)
    require(known, "parts", list(parts), f"some of {', '.join(PARTS)}, each once")


def parts_of(model: RSSM, decoder: Decoder | None) -> dict[str, list[nn.Module]]:
    """The modules of every part."""
    transition = (model.gru, model.observation_head, model.termination_head)
    return {
        "decoder": [decoder] if decoder is not None else [],
        "reward": [model.reward_head],
        "transition": [module for module in transition if module is not None],
    }


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
    >>> policy.noise_shape
    (2, 9, 4)
    >>> states, noise = model.initial(torch.zeros(5, 3)), torch.randn(5, *policy.noise_shape)
    >>> mean = policy(states, noise)
    >>> mean.shape, policy.log_prob(torch.zeros(5, 1), mean).shape
    (torch.Size([5, 1]), torch.Size([5]))
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
        self._guide = Guide(self.value, model, planner.value_pessimism) if self.value is not None else None
        self._frozen: FrozenRollout | None = None
        self._mpc = self._controller()
        self.noise_shape = planner.iterations, planner.samples, self._mpc.search_dim
        """(T, N, n) of the noise that one plan takes."""
        log_std = torch.full((model.action_dim,), math.log(std))
        self.log_std = nn.Parameter(log_std.to(next(model.parameters())), requires_grad=learn_std)

    def _controller(self) -> MPC:
        imagination = self._frozen or self.model
        return self.planner.mpc(self.model, imagination, self.decoder, self._backward, self._guide)

    def forward(self, states: Tensor, noise: Tensor) -> Tensor:
        """The mean: model states (B, S) and noise (B, T, N, n) → actions (B, m)."""
        if self._frozen is not None:
            self._frozen.refresh()
        with torch.no_grad():
            situation = self.planner.situation(states, self._guide, self.decoder, noise[:, 0])
        return self._mpc(situation, noise=noise.transpose(0, 1), cost=False).action

    def log_prob(self, actions: Tensor, mean: Tensor) -> Tensor:
        """ln π of actions (B, m), as they were drawn and not clipped, around means (B, m): (B,)."""
        return log_prob(actions, mean, self.log_std)

    def actor(self) -> Planner:
        """A fast planner without gradients for the mean, in the precision of evaluations: call with noise."""
        return Planner(self.model, self.planner, self.decoder, value=self.value)

    def train_only(self, parts: Iterable[str]) -> list[nn.Parameter]:
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
        trained = []
        for part, owners in parts_of(self.model, self.decoder).items():
            for parameter in (p for owner in owners for p in owner.parameters()):
                parameter.requires_grad_(part in chosen)
                if part in chosen:
                    trained.append(parameter)
        # A frozen transition saves half of the backward pass.
        self._frozen = None
        if "transition" not in chosen:
            self._frozen = FrozenRollout(self.model, "reward" in chosen, DTYPES[self.planner.dtype])
        self._mpc = self._controller()
        return trained


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

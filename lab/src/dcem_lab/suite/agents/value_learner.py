"""Learning critics and an actor on replayed experience, in addition to the world model.

The critics' targets are returns of n steps, with what averaged critics say about the actor's next action
behind them, the less of two drawn at random:

    y = Σ_{i<n} γ^i r_i + γ^n min_{j ∈ two of K} Q̄_j(x_n, π̄(x_n) + clipped noise).

A time limit ends an episode but not the task, so y bootstraps after it, but not after a termination.

Other policies than π̄ earned the n rewards. Imagined targets have one that was replayed, r_0, and then what π̄
earns in H steps of the world model, from its state x_1 after the replayed step. They are λ-returns:

    y = r_0 + γ G_1,    G_t = (1 − λ) V_t + λ (r_t + γ G_{t+1}),    G_{H+1} = V_{H+1},

V_t is the averaged critics' value of x_t and the noisy action taken there, as above. Rewards
and observations are means over the members, without pessimism. Where the model predicts terminations, r_t
and V_t count with its probability that the episode still went on.

The actor maximises the mean of the critics, with a penalty that keeps it away from the limits of the tanh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Generator, Tensor

from dcem_lab.runs.settings import Settings, setting
from dcem_lab.suite.agents.value import KINDS, Value
from dcem_lab.suite.replay import Chunk, ReplayBuffer
from dcem_lab.suite.rssm import RSSM
from dcem_lab.training.supplied import Supplied

try:
    from dcem_lab.suite.agents import value_triton
except ImportError:  # Triton is not installed
    value_triton = None  # type: ignore[assignment]

TARGETS = ("replay", "imagined")


@dataclass(frozen=True, kw_only=True)
class ValueConfig(Settings):
    """Critics and an actor, and how they learn.

    Attributes:
        critics: K, number of critics.
        width: units of the two hidden layers of every network.
        gamma: discount per action; null for 1 − action repeat / 200, a time constant of 200 environment
            steps.
        reward_scale: factor on rewards.
        values: output of the critics: scalar, or two-hot, a distribution over bins.
        bins, span, symlog: number of bins, their range −span to span of scaled values, and whether they are
            on a symmetric log scale.
        updates_per_step: updates per step of all environments; can be a fraction.
        batch: transitions per update.
        targets: what the critics learn: replay, n-step returns of the replay buffer, or imagined, λ-returns
            of one replayed step and then of the actor in the world model.
        steps: n of the n-step returns in replay targets.
        imagined_steps: steps of the world model in imagined targets.
        lam: λ of imagined targets: 0 for one replayed reward and then the critics, 1 to leave the critics out
            up to the last imagined step.
        early_share: fraction of the batch from the first `early_steps` steps of episodes, which are otherwise
            rare.
        early_steps: number of steps that count as the beginning.
        smoothing, smoothing_clip: standard deviation and limit of the noise on the actor's action in targets.
        bound: upper bound of the critics in targets, in units of the reward; null for no bound, or on the
            control suite for the maximum return (a reward of at most one per environment step).
        calm: weight of the penalty on the actor's squared outputs before the tanh.
        lr: learning rate of Adam.
        clip: maximum norm of the gradients.
        average: decay of the moving average used for targets and planning.
    """

    NETWORK: ClassVar = ("critics", "width", "gamma", "reward_scale", "values", "bins", "span", "symlog")
    """What of it the networks are made of."""

    critics: int = setting(5, least=2)
    width: int = setting(256, least=1)
    gamma: float | None = setting(None, least=0, below=1)
    reward_scale: float = setting(0.1, above=0)
    values: str = setting("scalar", among=KINDS)
    bins: int = setting(101, least=2)
    span: float = setting(10.0, above=0)
    symlog: bool = True
    updates_per_step: float = setting(12.0, least=0)
    batch: int = setting(512, least=1)
    targets: str = setting("replay", among=TARGETS)
    steps: int = setting(3, least=1)
    imagined_steps: int = setting(3, least=1)
    lam: float = setting(0.8, least=0, most=1)
    early_share: float = setting(0.0, least=0, most=1)
    early_steps: int = setting(25, least=1)
    smoothing: float = setting(0.2, least=0)
    smoothing_clip: float = setting(0.5, least=0)
    bound: float | None = setting(None, least=0)
    calm: float = setting(1e-3, least=0)
    lr: float = setting(3e-4, above=0)
    clip: float = setting(10.0, above=0)
    average: float = setting(0.995, least=0, below=1)

    @property
    def replayed_steps(self) -> int:
        """Of the chunks that targets are made of."""
        return 1 if self.targets == "imagined" else self.steps

    @property
    def network(self) -> dict[str, Any]:
        """The arguments of `Value`, except the sizes of observation and action."""
        if self.gamma is None:
            raise ValueError("gamma must be given where the action repeat is not known, got null")
        return {name: getattr(self, name) for name in self.NETWORK}

    def value(self, model: RSSM, seed: int) -> Value:
        """New critics and a new actor, for what that model observes."""
        sizes = model.features, model.action_dim
        return Value(*sizes, **self.network, generator=Generator().manual_seed(seed))


class Transitions(NamedTuple):
    """The transitions of an update, without the critics' values."""

    x: Tensor  # (B, X), first observations
    u: Tensor  # (B, m), first actions
    earned: Tensor  # (B,), discounted rewards over n steps
    behind: Tensor  # (B, X), last observations; for imagined targets (B, S), the model's last states
    discount: Tensor  # (B,), of the value there: γ^n, or 0
    noise: Tensor  # (B, m), in the averaged actor's action there
    pair: Tensor  # (B, 2), two different critics, who judge it


class ValueLearner(Supplied):
    """Fits critics to targets and an actor to the critics, in one update.

    The model's normaliser says what x is, and imagined targets happen in it; it does not learn here. The
    generator is on the replay buffer's device.
    """

    average: Value
    tag = "value"

    def __init__(
        self, value: Value, model: RSSM, replay: ReplayBuffer, config: ValueConfig, generator: Generator
    ) -> None:
        self.value, self.model, self.replay, self.config = value, model, replay, config
        told = value.settings
        behind = model.state_dim if config.targets == "imagined" else told["features"]
        m = told["action_dim"]
        columns = [told["features"], m, 1, behind, 1, m, 2]
        super().__init__(value, config, generator, columns, config.early_share)

    def rows(self, count: int, early: bool) -> Transitions:
        from_start = self.config.early_steps if early else 0
        steps = self.config.replayed_steps
        return self.transitions(self.replay.sample(count, steps, self.generator, from_start, padded=True))

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        config, value = self.config, self.value
        x, u, earned, behind, discount, noise, pair = self.take()
        transitions = Transitions(x, u, earned.squeeze(-1), behind, discount.squeeze(-1), noise, pair)
        targets = self.targets(transitions)
        said = value.say(x, u)
        critic_loss = value.errors(said, targets).mean(dim=-1).sum()

        raw = value.actor.raw(x)
        worth = value.read(value.say(x, raw.tanh(), frozen=True)).mean()
        actor_loss = config.calm * raw.square().mean() - worth
        figures = {
            "critic_loss": critic_loss.detach() / config.critics,
            "value": worth.detach() / value.reward_scale,
            "target": targets.mean() / value.reward_scale,
            "calm": raw.detach().square().mean(),
        }
        return critic_loss + actor_loss, figures

    def gradients(self) -> tuple[Sequence[Tensor], dict[str, Tensor]]:
        config, kernels = self.config, self._kernels
        if kernels is None:
            return super().gradients()
        found, figures = kernels.gradients(
            self.value, self.average, self.take_rows(), config.bound, config.calm
        )
        named = dict(zip(kernels.FIGURES, figures.unbind(), strict=True))
        return [found[parameter] for parameter in self._parameters], named

    @property
    def _kernels(self) -> ModuleType | None:
        """For all of an update, if there are any for it."""
        if value_triton is None or self.config.targets != "replay":
            return None
        return value_triton if value_triton.fits(self.value) else None

    @torch.no_grad()
    def transitions(self, chunk: Chunk) -> Transitions:
        """Transitions of n steps each, the length of the chunks."""
        gamma, n = self.value.gamma, chunk.rewards.shape[1]
        x, over = self.model.normalizer.encode(chunk.observations), chunk.terminated.any(dim=1)
        powers = gamma ** torch.arange(n, device=x.device)
        earned = (chunk.rewards * powers).sum(dim=1)
        behind = x[:, -1]
        if self.config.targets == "imagined":
            behind = self.model.initial(chunk.observations[:, 0])
            for t in range(n):
                behind = self.model.observe(behind, chunk.actions[:, t], chunk.observations[:, t + 1])
        u = chunk.actions[:, 0]
        return Transitions(x[:, 0], u, earned, behind, gamma**n * ~over, *self._noise_and_pair(u))

    @torch.no_grad()
    def targets(self, transitions: Transitions) -> Tensor:
        """The critics' targets for x and u, (B,), in their unit."""
        if self.config.targets == "imagined":
            behind = self._imagined(transitions.behind, transitions.noise, transitions.pair)
        else:
            _, behind = self._judged(transitions.behind, transitions.noise, transitions.pair)
        return self.value.reward_scale * (transitions.earned + transitions.discount * behind)

    def _imagined(self, state: Tensor, noise: Tensor, pair: Tensor) -> Tensor:
        """λ-returns (B,) of the averaged actor from model states (B, S), in units of the reward."""
        lam, gamma, model = self.config.lam, self.value.gamma, self.model
        u, worth = self._judged(model.observed(state).mean(dim=-2), noise, pair)
        passed: list[tuple[Tensor, Tensor]] = []
        for _ in range(self.config.imagined_steps):
            state, cost = model.step(state, u, pessimism=0.0)  # its reward counts as far as it went on
            passed.append((worth, -cost))
            u, worth = self._judged(model.observed(state).mean(dim=-2), *self._noise_and_pair(u))
            worth = model.going_on(state) * worth
        for critics, reward in reversed(passed):
            worth = (1 - lam) * critics + lam * (reward + gamma * worth)
        return worth

    def _noise_and_pair(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """For as many averaged actions as these (B, m): noise (B, m), and the two critics (B, 2) of each."""
        config = self.config
        noise = config.smoothing * torch.empty_like(like).normal_(generator=self.generator)
        # Drawn so that nothing waits for the device.
        ranks = torch.rand(len(like), config.critics, device=like.device, generator=self.generator)
        pair = ranks.topk(2, dim=-1).indices.to(like.dtype)
        return noise.clamp(-config.smoothing_clip, config.smoothing_clip), pair

    def _judged(self, x: Tensor, noise: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        """The averaged actor's noisy actions (B, m) in x (B, X), and their values by two averaged critics.

        Values (B,) are in units of the reward, within the bound.
        """
        u = (self.average.actor(x) + noise).clamp(-1, 1)
        q = self.average(x, u).gather(0, pair.long().T)
        worth, bound = q.amin(dim=0), self.config.bound
        return u, worth if bound is None else worth.clamp(max=bound)

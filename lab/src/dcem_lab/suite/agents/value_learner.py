"""Learning critics and an actor on replayed experience, beside the world model.

The critics' targets are returns of n steps, with what averaged critics say about the actor's next action
behind them, the less of two drawn at random:

    y = Σ_{i<n} γ^i r_i + γ^n min_{j ∈ two of K} Q̄_j(x_n, π̄(x_n) + clipped noise).

A time limit ends an episode and not the task, so y goes on behind it; behind a termination there is nothing.
The actor maximises the mean of the critics, held away from the ends of the tanh.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Generator, Tensor

from dcem import capture
from dcem_lab.runs.settings import Settings, setting
from dcem_lab.suite.agents.value import KINDS, Value
from dcem_lab.suite.replay import Chunk, ReplayBuffer
from dcem_lab.suite.rssm import RSSM
from dcem_lab.training.fit import Fit


@dataclass(frozen=True, kw_only=True)
class ValueConfig(Settings):
    """Critics and an actor, and how they learn.

    Attributes:
        critics: K, of them.
        width: units of the two hidden layers of every network.
        gamma: discount per action; null for 1 − action repeat / 200, so that what is 200 environment steps
            away counts 1/e of what is near.
        reward_scale: rewards are multiplied by it before anything is learned.
        values: what critics say: scalar, a number, or two-hot, a distribution over bins.
        bins, span, symlog: of the bins, from −span to span of scaled values, or of their symmetric
            logarithm.
        updates_per_step: updates for every step of all environments; may be a fraction.
        batch: transitions in an update.
        steps: n, rewards before the critics take over.
        early_share: share of the batch that is taken from the first `early_steps` steps of episodes, which
            are rare otherwise.
        early_steps: how many steps are a beginning.
        smoothing, smoothing_clip: standard deviation and limit of the noise on the actor's action in targets.
        bound: what values may be at most, in units of the reward, where critics take over; null for no
            bound, but on tasks of the control suite what its rewards can add up to, at most one an
            environment step.
        calm: weight of the actor's squared outputs before the tanh.
        lr: of Adam.
        clip: gradients are scaled down to this norm.
        average: decay of the moving average that makes the targets and plans.
    """

    NETWORK: ClassVar = (
        "critics",
        "width",
        "gamma",
        "reward_scale",
        "values",
        "bins",
        "span",
        "symlog",
    )
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
    steps: int = setting(3, least=1)
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
    def network(self) -> dict[str, Any]:
        """What a `Value` is told, beside the sizes of observation and action."""
        if self.gamma is None:
            raise ValueError("gamma must be given where the action repeat is not known, got null")
        return {name: getattr(self, name) for name in self.NETWORK}

    def value(self, model: RSSM, seed: int) -> Value:
        """New critics and a new actor, for what that model observes."""
        sizes = model.features, model.action_dim
        return Value(*sizes, **self.network, generator=Generator().manual_seed(seed))


class Transitions(NamedTuple):
    """What an update learns from; what critics say comes later."""

    x: Tensor  # (B, X), where they start
    u: Tensor  # (B, m), what was done there
    earned: Tensor  # (B,), discounted, over n steps
    behind: Tensor  # (B, X), where they end
    discount: Tensor  # (B,), of what comes then: γ^n, or nothing


class ValueLearner(Fit):
    """Fits critics to targets and an actor to the critics, in one update.

    Experience for all updates of an agent's step is drawn at once: on a GPU, drawing takes as many launches
    as learning.

    Args:
        value: learns.
        model: whose normaliser says what x is.
        replay: where transitions come from.
        config: how the critics and the actor learn.
        generator: of transitions and noise, on the replay buffer's device.
    """

    average: Value
    tag = "value"

    def __init__(
        self, value: Value, model: RSSM, replay: ReplayBuffer, config: ValueConfig, generator: Generator
    ) -> None:
        self.value, self.replay, self.config = value, replay, config
        self._normalizer = model.normalizer
        super().__init__(value, config, generator)
        told = value.settings
        self._columns = [told["features"], told["action_dim"], 1, told["features"], 1]
        at_once = max(1, math.ceil(config.updates_per_step))
        self._drawn = torch.zeros(at_once, config.batch, sum(self._columns), device=replay.device)
        self._next = torch.zeros(1, dtype=torch.int64, device=replay.device)
        self._left = 0
        self._draw = capture(
            self._draw_anew, changes=[self._drawn, self._next], generator=generator, compile=False
        )

    def update(self) -> None:
        if self._left == 0:
            self._draw()
            self._left = len(self._drawn)
        self._left -= 1
        super().update()

    def keep_pace(self) -> None:
        self._left = 0  # there is new experience
        super().keep_pace()

    @torch.no_grad()
    def _draw_anew(self) -> None:
        config, at_once = self.config, len(self._drawn)
        early = round(config.early_share * config.batch)
        parts = []
        for count, from_start in ((config.batch - early, 0), (early, config.early_steps)):
            if count:
                chunk = self.replay.sample(
                    at_once * count, config.steps, self.generator, from_start, padded=True
                )
                x, u, earned, behind, discount = self.transitions(chunk)
                rows = torch.cat([x, u, earned.unsqueeze(-1), behind, discount.unsqueeze(-1)], dim=-1)
                parts.append(rows.unflatten(0, (at_once, count)))
        self._drawn.copy_(torch.cat(parts, dim=1))
        self._next.zero_()

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        config, value = self.config, self.value
        rows = self._drawn.index_select(0, self._next).squeeze(0)
        self._next += 1
        x, u, earned, behind, discount = rows.split(self._columns, dim=-1)
        targets = self.targets(Transitions(x, u, earned.squeeze(-1), behind, discount.squeeze(-1)))
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

    @torch.no_grad()
    def transitions(self, chunk: Chunk) -> Transitions:
        """Of n steps each, the length of the chunks."""
        gamma, n = self.value.gamma, chunk.rewards.shape[1]
        x, over = self._normalizer.encode(chunk.observations), chunk.terminated.any(dim=1)
        powers = gamma ** torch.arange(n, device=x.device)
        earned = (chunk.rewards * powers).sum(dim=1)
        return Transitions(x[:, 0], chunk.actions[:, 0], earned, x[:, -1], gamma**n * ~over)

    @torch.no_grad()
    def targets(self, transitions: Transitions) -> Tensor:
        """What to tell the critics about x and u (B,), in their unit."""
        behind = self._behind(transitions.behind)
        if self.config.bound is not None:
            behind = behind.clamp(max=self.config.bound)
        return self.value.reward_scale * (transitions.earned + transitions.discount * behind)

    def _behind(self, x: Tensor) -> Tensor:
        """What the averaged critics make of x (B, X), (B,), in units of the reward."""
        config, value = self.config, self.average
        u = value.actor(x)
        noise = config.smoothing * torch.empty_like(u).normal_(generator=self.generator)
        u = (u + noise.clamp(-config.smoothing_clip, config.smoothing_clip)).clamp(-1, 1)
        q = value(x, u)
        # Two critics for every row: drawn so that nothing waits for the device.
        drawn = torch.rand(q.shape, device=q.device, generator=self.generator).topk(2, dim=0).indices
        return q.gather(0, drawn).amin(dim=0)

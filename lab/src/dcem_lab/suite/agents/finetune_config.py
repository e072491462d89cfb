"""The settings of PPO through a planner."""

from __future__ import annotations

from dataclasses import dataclass

from dcem_lab.runs import require
from dcem_lab.runs.settings import Settings, setting
from dcem_lab.suite.agents.soft_plans import require_parts
from dcem_lab.training.modes import MODES

BACKWARD_MODES = tuple(mode for mode in MODES if mode != "detach")  # which passes no gradient


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(Settings):
    """PPO through a planner. The defaults are the paper's where it says, else PPO's usual ones.

    Attributes:
        parts: parts to train, of decoder, reward and transition; the rest is frozen.
        passes: passes over the episodes of a step.
        minibatch: transitions per update; an incomplete last minibatch is dropped.
        lr: learning rate of the parts.
        std: σ of the policy around the planned action; the paper's variance is 0.1.
        learn_std: also train std.
        std_lr: learning rate of σ.
        gamma, lam: discount and λ of the advantage estimates.
        clip: probability ratios are clipped to 1 ± this.
        grad_clip: maximum norm of the gradients.
        value_width: units of the value network's two hidden layers.
        value_lr: learning rate of the value network.
        value_updates: updates of the value network per step, each on a minibatch.
        value_steps: initial steps that train only the value network.
        backward: how plans are differentiated (`dcem.backward`): unroll, checkpoint, truncate or prune.
        kept: fraction of the iterations that truncate differentiates, or of the samples for prune.
        filter_again: if the transition is trained, recompute the model states of the episodes before every
            pass but the first.
        likelihood: weight of the model loss on the collected data; 0 in the paper.
        batch, length: chunks per update of the model loss, and steps per chunk.
        replay_steps: steps kept for the model loss, over all environments.
    """

    parts: tuple[str, ...] = ("decoder", "reward")
    passes: int = setting(2, least=1)
    minibatch: int = setting(250, least=1)
    lr: float = setting(1e-4, above=0)
    std: float = setting(0.1**0.5, above=0)
    learn_std: bool = False
    std_lr: float = setting(3e-4, above=0)
    gamma: float = setting(0.99, least=0, below=1)
    lam: float = setting(0.95, least=0, most=1)
    clip: float = setting(0.2, above=0)
    grad_clip: float = setting(0.5, above=0)
    value_width: int = setting(256, least=1)
    value_lr: float = setting(1e-3, above=0)
    value_updates: int = setting(100, least=0)
    value_steps: int = setting(5, least=0)
    backward: str = setting("checkpoint", among=BACKWARD_MODES)
    kept: float = setting(0.2, above=0, most=1)
    filter_again: bool = True
    likelihood: float = setting(0.0, least=0)
    batch: int = setting(50, least=1)
    length: int = setting(50, least=1)
    replay_steps: int = setting(100_000, least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_parts(self.parts, at_least=0 if self.learn_std else 1)
        fitted = {"reward", "transition"} & set(self.parts)
        require(not self.likelihood or bool(fitted), "likelihood", self.likelihood,
                "0 where parts have neither reward nor transition")  # fmt: skip

    def check(self, n_envs: int, actions: int, distance: int) -> None:
        """ValueError unless a step of so many actions in each environment is enough to learn from."""
        most, enough = n_envs * actions, not self.likelihood or distance <= self.length < actions
        require(enough, "length", self.length, f"from model.distance={distance} to below actions={actions}")
        require(
            self.minibatch <= most, "minibatch", self.minibatch, f"at most {most}, the transitions of a step"
        )

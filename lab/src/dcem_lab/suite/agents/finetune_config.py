"""The settings of PPO through a planner."""

from __future__ import annotations

from dataclasses import dataclass

from dcem_lab.runs import require
from dcem_lab.runs.settings import Settings, setting
from dcem_lab.suite.agents.policy import PARTS
from dcem_lab.training.modes import MODES

BACKWARD_MODES = tuple(mode for mode in MODES if mode != "detach")  # which passes no gradient


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(Settings):
    """PPO through a planner. The defaults are the paper's where it says, else PPO's usual ones.

    Attributes:
        parts: what is trained, of decoder, reward and transition; the rest is frozen.
        passes: over the episodes of a step.
        minibatch: transitions in an update; those of a step that fill no whole one are left out of it.
        lr: Adam's, for the parts.
        std: σ of the policy around the planned action; the paper's variance is 0.1.
        learn_std: train it too.
        std_lr: Adam's, for σ.
        gamma, lam: of the advantages.
        clip: ratios gain nothing beyond 1 ± this.
        grad_clip: gradients of an update are scaled down to this norm.
        value_width: units of the value network's two hidden layers.
        value_lr: Adam's, for the value network.
        value_updates: of the value network in a step, each on a minibatch.
        value_steps: first steps in which only the value network learns.
        backward: how plans are differentiated (`dcem.backward`): unroll, checkpoint, truncate or prune.
        kept: the share of the iterations that truncate differentiates, or of the samples that prune does.
        filter_again: where the transition is trained, follow the episodes again with the model as it is
            before every pass but the first, instead of keeping the model states they were gathered with.
        likelihood: weight of the model's likelihood, on chunks of what was gathered; the paper's is 0.
        batch, length: chunks for that, and steps in a chunk.
        replay_steps: steps kept for that, over all environments.
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
        known = len(set(self.parts)) == len(self.parts) and set(self.parts) <= set(PARTS)
        require(known and bool(self.parts or self.learn_std), "parts", list(self.parts),
                f"some of {', '.join(PARTS)}, each once")  # fmt: skip
        fitted = {"reward", "transition"} & set(self.parts)
        require(not self.likelihood or bool(fitted), "likelihood", self.likelihood,
                "0 where parts have neither reward nor transition")  # fmt: skip

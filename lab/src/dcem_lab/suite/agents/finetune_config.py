"""The settings of PPO through a planner."""

from __future__ import annotations

from dataclasses import dataclass

from dcem.backward import MODES, Backward, by_name
from dcem_lab.suite.agents.policy import PARTS

BACKWARD_MODES = tuple(mode for mode in MODES if mode != "detach")  # which passes no gradient


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
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
        filter_again: where the transition is trained, follow the episodes anew with the model as it is before
            every pass but the first, instead of keeping the model states they were gathered with.
        likelihood: weight of the model's likelihood, on chunks of what was gathered; the paper's is 0.
        batch, length: chunks for that, and steps in a chunk.
        replay_steps: steps kept for that, over all environments.
    """

    parts: tuple[str, ...] = ("decoder", "reward")
    passes: int = 2
    minibatch: int = 250
    lr: float = 1e-4
    std: float = 0.1**0.5
    learn_std: bool = False
    std_lr: float = 3e-4
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    grad_clip: float = 0.5
    value_width: int = 256
    value_lr: float = 1e-3
    value_updates: int = 100
    value_steps: int = 5
    backward: str = "checkpoint"
    kept: float = 0.2
    filter_again: bool = True
    likelihood: float = 0.0
    batch: int = 50
    length: int = 50
    replay_steps: int = 100_000

    def __post_init__(self) -> None:
        # Command lines and JSON give lists; a frozen config must stay hashable.
        object.__setattr__(self, "parts", tuple(self.parts))
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or len(set(self.parts)) < len(self.parts) or not (self.parts or self.learn_std):
            raise ValueError(f"parts must be some of {', '.join(PARTS)}, each once, got {list(self.parts)}")
        for name in ("lr", "std", "std_lr", "clip", "grad_clip", "value_lr"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("passes", "minibatch", "value_width", "batch", "length", "replay_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("value_updates", "value_steps", "likelihood"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not 0 <= self.gamma < 1:
            raise ValueError(f"gamma must be from 0 to below 1, got {self.gamma}")
        if not 0 <= self.lam <= 1:
            raise ValueError(f"lam must be from 0 to 1, got {self.lam}")
        if not 0 < self.kept <= 1:
            raise ValueError(f"kept must be above 0 and at most 1, got {self.kept}")
        if self.backward not in BACKWARD_MODES:
            raise ValueError(f"backward must be one of {', '.join(BACKWARD_MODES)}, got {self.backward!r}")
        if self.likelihood and not {"reward", "transition"} & set(self.parts):
            raise ValueError(
                f"likelihood must be 0 where parts have neither reward nor transition, got {self.likelihood}"
            )

    def mode(self, iterations: int) -> Backward:
        """How to differentiate plans of so many iterations."""
        return by_name(self.backward, self.kept, iterations)

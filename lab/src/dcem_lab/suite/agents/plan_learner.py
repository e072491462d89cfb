"""Phase 3 off policy: train parts of the planner, through the plan, to increase the critics' values.

    max_θ E_s Q(s, plan_θ(s)),

over replayed states s, for chosen parts θ of the planner: decoder, reward, transition. This requires a
differentiable planner; PPO (`finetune.py`) needs new episodes for every step instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from dcem_lab.runs.settings import Settings, setting
from dcem_lab.suite.agents.decoder_learner import DecoderLearner
from dcem_lab.suite.agents.soft_plans import SoftPlans, modules_of, require_parts
from dcem_lab.suite.rssm import RSSM
from dcem_lab.training.fit import Fit


@dataclass(frozen=True, kw_only=True)
class PlanConfig(Settings):
    """How plans learn to please the critics.

    Attributes:
        parts: parts to train, of decoder, reward and transition.
        updates_per_step: updates per step of all environments; can be a fraction, or 0 for none.
        lr: learning rate of Adam.
        clip: maximum norm of the gradients.
        average: decay of the moving average of the weights used for planning.
    """

    parts: tuple[str, ...] = ("decoder", "reward")
    updates_per_step: float = setting(0.0, least=0)
    lr: float = setting(1e-4, above=0)
    clip: float = setting(1.0, above=0)
    average: float = setting(0.999, least=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_parts(self.parts)


class PlanLearner(Fit):
    """Maximises the critics' values of planned actions.

    Its parts may also belong to other learners, which then update the same weights and averages.

    Args:
        model: what plans are made with, in training.
        latent: learner of their decoder, with model and decoder that act, whose parts follow. Its value has
            the critics, and states and gradients are as there.
        config: how plans learn, softly: a hard top-k passes no gradient.
        generator: of states and samples, on the model's device.
    """

    tag = "plan"

    def __init__(self, model: RSSM, latent: DecoderLearner, config: PlanConfig, generator: Generator) -> None:
        assert latent.value is not None  # it has the critics
        self.model, self.latent, self.value = model, latent, latent.value
        self._plans = SoftPlans(
            model, latent.decoder, latent.planner, latent.backward, latent.value, config.parts
        )
        learning, acting = (
            nn.ModuleDict({part: modules_of(part, *networks) for part in config.parts})
            for networks in ((model, latent.decoder), (latent.model, latent.average))
        )
        super().__init__(learning, config, generator, average=acting)

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        value, (T, N, n) = self.value, self._plans.noise_shape
        states = self.latent.config.replayed(self.model, self.latent.replay, self.generator)
        noise = torch.empty(T, len(states), N, n, device=states.device).normal_(generator=self.generator)
        action = self._plans(states, noise.transpose(0, 1))
        worth = value.read(value.say(self.model.observed(states).mean(dim=-2), action, frozen=True)).mean()
        return -worth, {"value": worth.detach() / value.reward_scale}

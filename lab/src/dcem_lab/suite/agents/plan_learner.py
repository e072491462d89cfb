"""Phase 3 off policy: train parts of the planner, through the plan, to increase the critics' values.

    max_θ E_s Q(s, plan_θ(s)),

over replayed states s, for chosen parts θ of the planner: decoder, reward, transition. This requires a
differentiable planner; PPO (`finetune.py`) needs new episodes for every step instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from dcem import Decoder
from dcem_lab.runs.settings import Settings, setting
from dcem_lab.suite.agents.decoder_learner import DecoderConfig
from dcem_lab.suite.agents.guide import Guide
from dcem_lab.suite.agents.planner import DTYPES, PlannerConfig
from dcem_lab.suite.agents.policy import parts_of, require_parts
from dcem_lab.suite.agents.replayed_states import replayed_states
from dcem_lab.suite.agents.value import Value
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM
from dcem_lab.suite.rssm.fast.imagine import FrozenRollout
from dcem_lab.training.fit import Fit
from dcem_lab.training.modes import by_name


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
        model, decoder: what plans are made with; the parts of them learn.
        averages: the model and the decoder that act, whose parts follow.
        value: critics to please, and what plans end in; it stays as it is.
        replay: where states come from.
        config: how it learns.
        sampling: which states, and how plans are differentiated: as a decoder would learn.
        planner: how plans are made, softly: a hard top-k passes no gradient.
        generator: of states and samples, on the model's device.
    """

    tag = "plan"

    def __init__(
        self,
        model: RSSM,
        decoder: Decoder | None,
        averages: tuple[RSSM, Decoder | None],
        value: Value,
        replay: ReplayBuffer,
        config: PlanConfig,
        sampling: DecoderConfig,
        planner: PlannerConfig,
        generator: Generator,
    ) -> None:
        self.model, self.decoder, self.value, self.replay = model, decoder, value, replay
        self._sampling, self._planner = sampling, planner
        self._frozen: FrozenRollout | None = None
        if "transition" not in config.parts:
            self._frozen = FrozenRollout(model, "reward" in config.parts, DTYPES[planner.dtype])
        self._guide = Guide(value, model, planner.value_pessimism)
        backward = by_name(sampling.backward, sampling.kept, planner.iterations)
        self._mpc = planner.mpc(model, self._frozen or model, decoder, backward, self._guide)
        super().__init__(_chosen(model, decoder, config.parts), config, generator)
        self.average = _chosen(*averages, config.parts)
        self._averages = list(self.average.parameters())

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        if self._frozen is not None:
            self._frozen.refresh()
        planner, guide, value = self._planner, self._guide, self.value
        with torch.no_grad():
            states = replayed_states(self.model, self.replay, self._sampling, self.generator)
            shape = planner.iterations, len(states), planner.samples, self._mpc.search_dim
            noise = torch.empty(shape, device=states.device).normal_(generator=self.generator)
            situation = planner.situation(states, guide, self.decoder, noise[0])
        action = self._mpc(situation, noise=noise, cost=False).action
        worth = value.read(value.say(self.model.observed(states).mean(dim=-2), action, frozen=True)).mean()
        return -worth, {"value": worth.detach() / value.reward_scale}


def _chosen(model: RSSM, decoder: Decoder | None, parts: tuple[str, ...]) -> nn.ModuleDict:
    modules = parts_of(model, decoder)
    return nn.ModuleDict({part: nn.ModuleList(modules[part]) for part in parts})

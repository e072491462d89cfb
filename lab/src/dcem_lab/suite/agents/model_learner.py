"""Learning the world model on replayed experience."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from dcem_lab.runs.settings import Settings, setting
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM, multistep_loss
from dcem_lab.training.fit import Fit


@dataclass(frozen=True, kw_only=True)
class LearningConfig(Settings):
    """How the world model learns. The defaults are the paper's; where it is silent, PlaNet's.

    Attributes:
        updates_per_step: model updates per step of all environments; can be a fraction.
        batch, length: chunks per update, and steps per chunk.
        lr, eps: learning rate and epsilon of Adam.
        clip: maximum norm of the gradients, over all members.
        average: decay of the moving average of the weights used for planning; 0 for no averaging.
        early_chunks: fraction of the chunks that are the beginning of an episode.
        update_every: steps of all environments between rounds of updates: 1 to interleave updates with steps,
            the length of an episode to alternate between collecting and learning.
        precision: of activations in updates: float32, or float16, which is faster and means float32 on a CPU.
    """

    updates_per_step: float = setting(1.0, least=0)
    batch: int = setting(50, least=1)
    length: int = setting(50, least=1)
    lr: float = setting(1e-3, above=0)
    eps: float = setting(1e-4, above=0)
    clip: float = setting(1000.0, above=0)
    average: float = setting(0.0, least=0, below=1)
    early_chunks: float = setting(0.0, least=0, most=1)
    update_every: int = setting(1, least=1)
    precision: str = setting("float32", among=("float32", "float16"))


class ModelLearner(Fit):
    """Fits a model to chunks of the replay buffer and keeps a moving average of its weights."""

    average: RSSM
    """The moving average, with the model's own statistics."""

    def __init__(
        self, model: RSSM, replay: ReplayBuffer, config: LearningConfig, generator: Generator
    ) -> None:
        super().__init__(model, config, generator, config.eps, config.update_every)
        self.model, self.replay, self.config = model, replay, config
        self.average.normalizer, self.average.reward_scale = model.normalizer, model.reward_scale

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        config, padded = self.config, self.model.config.termination
        chunk = self.replay.sample_with_starts(
            config.batch, config.length, self.generator, config.early_chunks, padded=padded
        )
        half = config.precision == "float16" and self.replay.device.type == "cuda"
        dtype = torch.float16 if half else None
        return multistep_loss(self.model, *chunk, generator=self.generator, dtype=dtype)

"""Learning the world model on replayed experience."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from dcem_lab.runs.settings import Settings, setting
from dcem_lab.suite.replay import Chunk, ReplayBuffer
from dcem_lab.suite.rssm import RSSM, multistep_loss
from dcem_lab.training.supplied import Supplied


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
        precision: of activations in updates: float32, or float16, for normalised observations on a GPU. On a
            CPU float16 means float32.
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


class ModelLearner(Supplied):
    """Fits a model to chunks of the replay buffer and keeps a moving average of its weights."""

    average: RSSM
    """The moving average, with the model's own statistics."""

    def __init__(
        self, model: RSSM, replay: ReplayBuffer, config: LearningConfig, generator: Generator
    ) -> None:
        self.model, self.replay, self.config = model, replay, config
        L, n, m = config.length, model.obs_dim, model.action_dim
        columns = [(L + 1) * n, L * m, L, L, L]  # of a `Chunk`
        early = config.early_chunks
        super().__init__(model, config, generator, columns, early, config.eps, config.update_every)
        self.average.normalizer, self.average.reward_scale = model.normalizer, model.reward_scale

    def rows(self, count: int, early: bool) -> Chunk:
        padded = self.model.config.termination
        return self.replay.sample(count, self.config.length, self.generator, int(early), padded=padded)

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        observations, actions, *rest = self.take()
        sizes = self.model.obs_dim, self.model.action_dim
        steps = (x.unflatten(-1, (-1, n)) for x, n in zip((observations, actions), sizes, strict=True))
        half = self.config.precision == "float16" and observations.is_cuda
        dtype = torch.float16 if half else None
        return multistep_loss(self.model, *steps, *rest, generator=self.generator, dtype=dtype)

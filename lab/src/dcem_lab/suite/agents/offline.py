"""Algorithm 2 of the paper on a replay buffer: the decoder learns on a model that is done with learning."""

import hashlib
from typing import Any

import torch
from torch import Generator, Tensor

from dcem_lab.suite.agents.decoder_learner import DecoderConfig, DecoderLearner
from dcem_lab.suite.agents.planet import spread
from dcem_lab.suite.agents.planner import PlannerConfig
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM
from dcem_lab.training.learners import Learners


class Offline:
    """A decoder learned without an environment; `step` is all there is to the training loop.

    Args:
        model: imagines; stays as it is.
        replay: the state of a replay buffer, which stays as it is.
        config: the decoder and how it learns.
        planner: how it is planned with.
        seed: of weights, states and samples.
        device: of everything.
    """

    def __init__(
        self,
        model: RSSM,
        replay: dict[str, Tensor],
        config: DecoderConfig,
        planner: PlannerConfig,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        # Neither is in a checkpoint: a run that resumes must be given the same ones again.
        self._given = _digest(model.state_dict()) + _digest(replay)
        self.model = model.requires_grad_(False).to(device)
        n_envs, capacity = replay["rewards"].shape
        self.replay = ReplayBuffer(
            n_envs, capacity, model.obs_dim, model.action_dim, device, shortest_episode=config.context
        )
        self.replay.load_state_dict(replay)
        seeds = spread(seed)
        decoder = config.decoder(model, planner.horizon, seeds["decoder"]).to(device)
        generator = Generator(device).manual_seed(seeds["decode"])
        learner = DecoderLearner(decoder, self.model, self.replay, config, planner, generator)
        self.learners, self.decoder = Learners({"decoder": learner}, device), learner.average

    def step(self) -> None:
        """As many updates as an agent does in a step of its environments."""
        self.learners.step()

    def metrics(self) -> dict[str, float]:
        """Of the decoder's learner."""
        return self.learners.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes, and what tells whether the rest is still the same."""
        return {"given": self._given, "learners": self.learners.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`, bit for bit, on the model and the replay buffer it was made with."""
        if state["given"] != self._given:
            raise ValueError(
                "model and replay must be those the run began with, got others: "
                "the source has changed since then"
            )
        self.learners.load_state_dict(state["learners"])


def _digest(tensors: dict[str, Tensor]) -> str:
    """The same for the same names and numbers alone, on whatever device."""
    digest = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        digest.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        digest.update(x.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()

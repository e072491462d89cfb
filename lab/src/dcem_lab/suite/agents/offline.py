"""Algorithm 2 of the paper on a replay buffer: the decoder is trained on a frozen model."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from dcem_lab.suite.agents.decoder_learner import DecoderLearner
from dcem_lab.training.learners import Learners


class Offline(Learners):
    """A decoder trained without an environment, as `dcem_lab.suite.agents.build_offline` constructs it.

    A step makes as many updates as an agent does per step of its environments.

    Args:
        learner: of the decoder, on a model and a replay buffer that stay as they are.
        given: a digest of those two. Neither is in a checkpoint: a run that resumes must be given the same
            ones again.
    """

    def __init__(self, learner: DecoderLearner, given: str) -> None:
        super().__init__({"decoder": learner}, learner.replay.device)
        self.model, self.decoder, self.value = learner.model, learner.average, learner.value
        self._given = given

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes, and a digest to check that the rest is the same."""
        return {"given": self._given, "learners": super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`, bit for bit, with the same model and replay buffer."""
        if state["given"] != self._given:
            raise ValueError(
                "model and replay must be those the run began with, got others: "
                "the source has changed since then"
            )
        super().load_state_dict(state["learners"])


def digest(tensors: dict[str, Tensor]) -> str:
    """The same for the same names and numbers alone, on whatever device."""
    found = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        found.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        found.update(x.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()

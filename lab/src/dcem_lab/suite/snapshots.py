"""The controller as it is and as it was when it played best: returns swing while it learns."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from dcem import Decoder
from dcem_lab.runs.config import to_json
from dcem_lab.suite.rssm import RSSM
from dcem_lab.suite.source import Pieces


class Snapshots:
    """Follows the weights of a controller and keeps those of its best evaluation.

    Named ``trained`` among the things that a run saves, it is what `load_source` reads, `dcem eval` plays
    and `ship` ships:

        trained = Snapshots(pieces, model, decoder)
        for step in run.steps(n, {"agent": agent, "trained": trained}):
            ...
            trained.keep_if_best(mean_return)

    Args:
        pieces: what the controller is made of.
        model, decoder: its weights, which go on changing.
    """

    def __init__(self, pieces: Pieces, model: RSSM, decoder: Decoder | None = None) -> None:
        self.pieces, self.model, self.decoder = pieces, model, decoder
        self.score = -math.inf
        """Of the best evaluation so far."""
        self._best: dict[str, Any] | None = None

    def keep_if_best(self, score: float) -> bool:
        """Keep the weights if no evaluation scored as high before. Waits for the device if so.

        NaN is no score: nothing would ever beat it.
        """
        if not score > self.score:
            return False
        self.score, self._best = score, self._now()
        return True

    def state_dict(self) -> dict[str, Any]:
        return {
            "pieces": to_json(self.pieces),
            "score": self.score,
            "best": self._best,
            "last": self._now(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`. The weights themselves are for those who train them to put back."""
        self.score, self._best = state["score"], state["best"]

    def _now(self) -> dict[str, Any]:
        return {
            "model": _copy(self.model),
            "decoder": _copy(self.decoder) if self.decoder is not None else None,
        }


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: x.detach().cpu().clone() for name, x in module.state_dict().items()}

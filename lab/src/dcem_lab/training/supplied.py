"""Gradient steps on batches that are drawn in advance, for all updates of an agent's step at once.

On a GPU, drawing a batch takes as many launches as learning from it. Where updates come in rounds of several
steps, a round draws as often as there were steps.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from dcem import capture
from dcem_lab.training.fit import Fit


class Supplied(Fit):
    """A `Fit` on batches of rows, which a subclass defines.

    Args:
        network, generator, eps, update_every: as for `Fit`.
        config: as for `Fit`, with batch, the number of rows.
        columns: numbers in each part of a row.
        early: share of the batch that is drawn as early `rows`.
    """

    def __init__(
        self,
        network: nn.Module,
        config: Any,
        generator: Generator,
        columns: Sequence[int],
        early: float,
        eps: float = 1e-8,
        update_every: int = 1,
    ) -> None:
        device, at_once = generator.device, max(1, math.ceil(config.updates_per_step))
        self._columns, self._early = list(columns), round(early * config.batch)
        self._drawn = torch.zeros(at_once, config.batch, sum(columns), device=device)
        self._next, self._left = torch.zeros(1, dtype=torch.int64, device=device), 0
        super().__init__(network, config, generator, eps, update_every)
        self._draw = capture(
            self._draw_anew, changes=[self._drawn, self._next], generator=generator, compile=False
        )

    @abstractmethod
    def rows(self, count: int, early: bool) -> Iterable[Tensor]:
        """The parts of so many rows, (count, ...) each. Early ones are rare, and wanted more often."""

    def take(self) -> Sequence[Tensor]:
        """The parts of the next batch, (B, columns) each. May be captured."""
        return self.take_rows().split(self._columns, dim=-1)

    def take_rows(self) -> Tensor:
        """The next batch, (B, sum of the columns). May be captured."""
        rows = self._drawn.index_select(0, self._next).squeeze(0)
        self._next += 1
        return rows

    def update(self) -> None:
        if self._left == 0:
            self._draw()
            self._left = len(self._drawn)
        self._left -= 1
        super().update()

    def keep_pace(self) -> None:
        self._left = 0  # there is new experience
        super().keep_pace()

    @torch.no_grad()
    def _draw_anew(self) -> None:
        at_once, batch, _ = self._drawn.shape
        parts = []
        for count, early in ((batch - self._early, False), (self._early, True)):
            if count:
                columns = [part.reshape(len(part), -1) for part in self.rows(at_once * count, early)]
                parts.append(torch.cat(columns, dim=-1).unflatten(0, (at_once, count)))
        self._drawn.copy_(torch.cat(parts, dim=1))
        self._next.zero_()

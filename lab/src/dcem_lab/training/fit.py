"""Gradient steps on a network, each a captured CUDA graph, and the moving average of its weights."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from dcem import capture
from dcem_lab.training.descent import descent


class Fit(ABC):
    """Minimises `loss`, which a subclass defines, by Adam on clipped gradients.

    An update (loss, gradient, Adam, average) is one captured graph on a CUDA device, without
    synchronisation: metrics accumulate on the device until they are read.

    Args:
        network: learns.
        config: with updates_per_step (of an agent; may be a fraction), lr of Adam, clip (gradients are scaled
            down to this norm) and average (decay of the moving average; 0 for the weights themselves).
        generator: for all random numbers of the loss, on the network's device.
        eps: epsilon of Adam.
        update_every: steps of an agent between rounds of updates.
        average: the moving average, if it exists: then it and the network may belong to other learners, too.
    """

    average: nn.Module
    """The moving average."""
    tag = ""
    """In front of the names of its metrics."""

    def __init__(
        self,
        network: nn.Module,
        config: Any,
        generator: Generator,
        eps: float = 1e-8,
        update_every: int = 1,
        average: nn.Module | None = None,
    ) -> None:
        self.generator, self.updates_per_step, self._due = generator, config.updates_per_step, 0.0
        self._update_every, self._waited = update_every, 0
        self._network = network
        self.average = copy.deepcopy(network).requires_grad_(False) if average is None else average
        self._parameters: list[Tensor] = list(network.parameters())
        averages, shared = list(self.average.parameters()), average is not None
        self._descent = descent(self._parameters, averages, config, eps, shared)
        self._names: list[str] = []
        self._totals = torch.zeros(0, device=self._parameters[0].device)
        self.updates = self._updates_read = 0
        self._captured = capture(
            self._update, parameters=self._parameters, generator=generator, eager=3, compile=False
        )

    @abstractmethod
    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss on a new batch, and detached metrics to report. May be captured."""

    def gradients(self) -> tuple[Sequence[Tensor], dict[str, Tensor]]:
        """Those of the loss, by parameter, and the metrics; a subclass may have a faster way to them."""
        with torch.enable_grad():
            loss, metrics = self.loss()
        return torch.autograd.grad(loss, self._parameters), metrics

    def update(self) -> None:
        """One gradient step. Does not wait for the device."""
        with torch.no_grad():
            self._captured()
        self.updates += 1

    def keep_pace(self) -> None:
        """The updates for one step of an agent; the remainder of a fraction is carried over to the next."""
        self._due += self.updates_per_step
        self._waited = (self._waited + 1) % self._update_every
        if self._waited:
            return
        while self._due >= 1:
            self._due -= 1
            self.update()

    def _update(self) -> None:
        gradients, metrics = self.gradients()
        norm = self._descent.step(gradients)
        values = torch.stack([*metrics.values(), norm])
        if not self._names:
            self._names, self._totals = [*metrics, "gradient_norm"], torch.zeros_like(values)
        self._totals.add_(values)

    def metrics(self) -> dict[str, float]:
        """Means of the metrics and of the gradient's norm since the last reading. Waits for the device."""
        new, self._updates_read = self.updates - self._updates_read, self.updates
        if new == 0:
            return {}
        means = dict(zip(self._names, (self._totals / new).tolist(), strict=True))
        self._totals.zero_()
        for name, value in means.items():
            if not math.isfinite(value):
                raise FloatingPointError(f"{name} is {value} after {self.updates} updates: training diverged")
        return means

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self._network.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self._descent.state_dict(),
            "updates": self.updates,
            "due": self._due,
            "waited": self._waited,
            "generator": self.generator.get_state(),
            "figures": (self._names, self._totals, self._updates_read),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`, before the first update: a captured update keeps its tensors."""
        self._network.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        self._descent.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.updates, self._due = state["updates"], state["due"]
        self._waited = state.get("waited", 0)  # older checkpoints have none
        self._names, totals, self._updates_read = state["figures"]
        self._totals = totals.to(self._totals.device)

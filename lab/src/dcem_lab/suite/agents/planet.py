"""The paper's PlaNet variant (Algorithm 3): plan, act, remember and learn, interleaved.

A step of the agent, with E environments:

    device, one stream         device, beside it            CPU
    plan from the E states     updates of the learners
    (actions to the host)      …                            step E environments
    record, follow, refresh

Planning reads a copy of the weights while updates write the weights themselves, so the two run concurrently
and synchronise once per step. A step plans with the weights before its updates, and the updates learn from
earlier steps. Without a CUDA device the same calls run one after another, with the same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator

from dcem import Decoder
from dcem_lab.suite.agents.collect import Collector
from dcem_lab.suite.agents.controller import step_environments
from dcem_lab.suite.agents.planner import Planner
from dcem_lab.suite.agents.value import Value
from dcem_lab.suite.rssm import RSSM
from dcem_lab.training.learners import Learners


@dataclass
class Planet:
    """The agent in its environments, as `dcem_lab.suite.agents.build` constructs it.

    If a decoder is among the learners, this is the DCEM branch of the algorithm: the planner searches the
    decoder's latent space.
    """

    learners: Learners  # updated in every step, once the seed episodes are over
    collector: Collector  # acts, and follows the environments with the model that plans
    planner: Planner
    generators: Mapping[str, Generator]  # of planner and collector, by name
    checkpoint_bytes: int  # a checkpoint's replay buffer holds the newest steps that fit
    seed_episodes: int  # before learning starts
    seed_steps: int  # of all environments, before learning starts
    seed_planner: Planner | None  # of the seed episodes; None for random actions
    policy_steps: int  # after which the policy acts alone in other environments; 0 for never

    def __post_init__(self) -> None:
        device = self.collector.replay.device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @property
    def model(self) -> RSSM:
        """The model to evaluate: the moving average."""
        return self.collector.model

    @property
    def decoder(self) -> Decoder | None:
        """The decoder to evaluate, where there is one: the moving average."""
        return self.planner.decoder

    @property
    def value(self) -> Value | None:
        """Critics and actor to evaluate with, where there are some: the moving average."""
        return self.planner.value

    def step(self) -> None:
        """One step of every environment and the corresponding updates."""
        collector, stopwatch = self.collector, self.learners.stopwatch
        seeding = collector.episodes < self.seed_episodes or collector.steps < self.seed_steps
        if not seeding:
            with _beside(self._stream):
                self.learners.step()
        if self.policy_steps:
            self.planner.turn(collector.steps // collector.envs.num_envs // self.policy_steps)
        with stopwatch.measure("plan"):
            actions = collector.act(self.seed_planner if seeding else self.planner)
        with stopwatch.measure("env", on_host=True):
            transition = step_environments(collector.envs, actions)
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        with stopwatch.measure("record"):
            collector.record(transition)
            self.planner.refresh()

    def metrics(self) -> dict[str, float]:
        """Metrics, the most important first. Waits for the device."""
        returns = self.collector.returns
        figures = {"return": float(np.mean(returns))} if returns else {}
        return figures | self.learners.metrics() | {"episodes": self.collector.episodes}

    def state_dict(self) -> dict[str, Any]:
        """Everything the next steps depend on; of the replay buffer, as much as a checkpoint has room for."""
        return {
            "learners": self.learners.state_dict(),
            "collector": self.collector.state_dict(),
            "replay": self.collector.replay.cut(self.checkpoint_bytes),
            "generators": {name: generator.get_state() for name, generator in self.generators.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`, bit for bit if its replay buffer was not cut."""
        self.learners.load_state_dict(state["learners"])
        self.collector.load_state_dict(state["collector"])
        self.collector.replay.load_state_dict(state["replay"])
        for name, saved in state["generators"].items():
            self.generators[name].set_state(saved)
        for planner in (self.planner, self.seed_planner):
            if planner is not None:
                planner.refresh()


@contextmanager
def _beside(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Run what follows on that stream, after all work queued on the current one. None: run as usual."""
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield

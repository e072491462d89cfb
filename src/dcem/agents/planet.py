"""The paper's PlaNet variant (Algorithm 3): plan, act, remember and learn, interleaved.

A step of the agent, with E environments:

    device, one stream         device, beside it            processor
    plan from the E states     updates of the model
    (actions to the host)      …                            step E environments
    record, follow, refresh

Planning reads a copy of the weights and updates write the weights themselves, so the two run at the same
time; they meet once a step. A step plans with the weights from before its updates, and these learn from the
steps before it: without a CUDA device the same calls, one after another, do the same.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from dcem.agents.collect import Collector
from dcem.agents.controller import flat_size, step_environments
from dcem.agents.planner import Planner, PlannerConfig
from dcem.agents.stopwatch import Stopwatch
from dcem.capture import capture
from dcem.envs.vector import ParallelEnv
from dcem.models import RSSM, RSSMConfig, multistep_loss
from dcem.rl.replay import ReplayBuffer

# Updates done one kernel at a time before they are captured: lazy initialisation must not be recorded.
_EAGER_UPDATES = 3


@dataclass(frozen=True, kw_only=True)
class PlanetConfig:
    """The agent. The defaults are the paper's; where it is silent, PlaNet's.

    Attributes:
        model: the world model.
        planner: the planner that collects.
        seed_episodes: S, episodes of random actions at the beginning.
        noise: standard deviation of the exploration noise.
        noise_from_zero: spread it over the environments, from 0 to `noise`, instead of the same for all.
        updates_per_step: model updates for every step of all environments; may be a fraction.
        batch, length: chunks in an update, and steps in a chunk.
        lr, eps: of Adam.
        clip: gradients are scaled down to this norm, over all members.
        average: decay of the moving average of the weights that plans; 0 for the weights themselves.
        replay_steps: steps kept in the replay buffer, over all environments.
        checkpoint_mb: a checkpoint's replay buffer holds the newest episodes that fit in so many megabytes.
    """

    model: RSSMConfig = field(default_factory=RSSMConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    seed_episodes: int = 5
    noise: float = 0.3
    noise_from_zero: bool = False
    updates_per_step: float = 1.0
    batch: int = 50
    length: int = 50
    lr: float = 1e-3
    eps: float = 1e-4
    clip: float = 1000.0
    average: float = 0.0
    replay_steps: int = 1_000_000
    checkpoint_mb: float = 100.0

    def __post_init__(self) -> None:
        for name in ("seed_episodes", "batch", "length", "replay_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "eps", "clip", "checkpoint_mb"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("noise", "updates_per_step"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not 0 <= self.average < 1:
            raise ValueError(f"average must be from 0 to below 1, got {self.average}")
        if self.length < self.model.distance:
            raise ValueError(
                f"length must be at least model.distance={self.model.distance}, got {self.length}"
            )


class Learner:
    """Fits a model to chunks of the replay buffer and keeps a moving average of its weights.

    An update (sampling, loss, gradient, Adam, average) is one captured graph on a CUDA device, and nothing in
    it waits: figures are added up there until they are read.

    Args:
        model: learns.
        replay: where chunks come from.
        config: batch, length, lr, eps, clip and average.
        generator: of the sampling and of the loss's noise, on the model's device.
    """

    def __init__(self, model: RSSM, replay: ReplayBuffer, config: PlanetConfig, generator: Generator) -> None:
        self.model, self.replay, self.config, self.generator = model, replay, config, generator
        self.average = copy.deepcopy(model).requires_grad_(False)
        self.average.normalizer = model.normalizer
        """The moving average, with the model's own statistics."""
        self._parameters: list[Tensor] = list(model.parameters())
        self._averages: list[Tensor] = list(self.average.parameters())
        on_cuda = self._parameters[0].is_cuda
        self.optimizer = torch.optim.Adam(self._parameters, config.lr, eps=config.eps, capturable=on_cuda)
        self._names: list[str] = []
        self._totals = torch.zeros(0, device=self._parameters[0].device)
        self.updates = self._updates_read = 0
        self._eager = _EAGER_UPDATES
        self._captured = capture(self._update, parameters=self._parameters, generator=generator, warmup=0)

    def update(self) -> None:
        """One gradient step on `batch` chunks. Does not wait for the device."""
        with torch.no_grad():
            if self._eager:
                self._eager -= 1
                self._update()
            else:
                self._captured()
        self.updates += 1

    def _update(self) -> None:
        config = self.config
        with torch.enable_grad():
            chunk = self.replay.sample(config.batch, config.length, self.generator)
            loss, figures = multistep_loss(self.model, *chunk, generator=self.generator)
            # Not backward(): its accumulation nodes are tied to the stream that first used a parameter.
            gradients = torch.autograd.grad(loss, self._parameters)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, config.clip)
        self.optimizer.step()
        torch._foreach_lerp_(self._averages, self._parameters, 1 - config.average)
        self._add_up({**figures, "gradient_norm": norm})

    def _add_up(self, figures: dict[str, Tensor]) -> None:
        values = torch.stack(list(figures.values()))
        if not self._names:
            self._names, self._totals = list(figures), torch.zeros_like(values)
        self._totals.add_(values)

    def read(self) -> dict[str, float]:
        """Mean loss, errors and gradient norm of the updates since the last reading. Waits for the device."""
        new, self._updates_read = self.updates - self._updates_read, self.updates
        if new == 0:
            return {}
        means = (self._totals / new).tolist()
        self._totals.zero_()
        return dict(zip(self._names, means, strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict()["state"],
            "updates": self.updates,
            "figures": (self._names, self._totals, self._updates_read),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`, before the first update: a captured one keeps the tensors it saw."""
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
        self.updates = state["updates"]
        self._names, totals, self._updates_read = state["figures"]
        self._totals = totals.to(self._totals.device)


class Planet:
    """The agent in its environments; `step` is all there is to the training loop.

    Args:
        envs: the environments it collects in.
        config: the agent.
        seed: of weights, environments, planning, exploration and learning.
        device: of model, replay buffer and planner.
    """

    def __init__(
        self, envs: ParallelEnv, config: PlanetConfig, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        self.config, self.device = config, torch.device(device)
        obs_size, action_size = flat_size(envs.single_observation_space), flat_size(envs.single_action_space)
        seeds = _spread(seed)
        model = RSSM(obs_size, action_size, config.model, Generator().manual_seed(seeds["model"])).to(device)
        capacity = max(2, config.replay_steps // envs.num_envs)
        # Episodes shorter than a chunk are never sampled: there is no need to keep count of them.
        self.replay = ReplayBuffer(
            envs.num_envs, capacity, obs_size, action_size, device, shortest_episode=config.length
        )
        self._generators = {
            name: Generator(device).manual_seed(seeds[name]) for name in ("plan", "explore", "learn")
        }
        self.learner = Learner(model, self.replay, config, self._generators["learn"])
        self._planner = Planner(self.learner.average, config.planner, generator=self._generators["plan"])
        noise = torch.full((envs.num_envs,), config.noise, device=device)
        if config.noise_from_zero:
            noise *= torch.linspace(0, 1, envs.num_envs, device=device)
        self.collector = Collector(
            envs, self.learner.average, self._planner, self.replay, noise, self._generators["explore"]
        )
        self.collector.restart(seeds["envs"])
        self.stopwatch = Stopwatch(self.device)
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._updates_due = 0.0

    @property
    def model(self) -> RSSM:
        """The model to evaluate: the moving average."""
        return self.learner.average

    def step(self) -> None:
        """One step of every environment and the updates that go with it."""
        seeding = self.collector.episodes < self.config.seed_episodes
        if not seeding:
            self._learn()
        with self.stopwatch.measure("plan"):
            actions = self.collector.act(randomly=seeding)
        with self.stopwatch.measure("env", on_host=True):
            transition = step_environments(self.collector.envs, actions)
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        with self.stopwatch.measure("record"):
            self.collector.record(transition)
            self._planner.refresh()

    def _learn(self) -> None:
        self._updates_due += self.config.updates_per_step
        with _beside(self._stream), self.stopwatch.measure("update"):
            while self._updates_due >= 1:
                self._updates_due -= 1
                self.learner.update()

    def state_dict(self) -> dict[str, Any]:
        """Everything the next steps depend on, the replay buffer as far as `checkpoint_mb` allows."""
        return {
            "learner": self.learner.state_dict(),
            "collector": self.collector.state_dict(),
            "replay": self.replay.cut(int(self.config.checkpoint_mb * 1e6)),
            "generators": {name: generator.get_state() for name, generator in self._generators.items()},
            "updates_due": self._updates_due,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`, bit for bit if its replay buffer was not cut."""
        self.learner.load_state_dict(state["learner"])
        self.collector.load_state_dict(state["collector"])
        self.replay.load_state_dict(state["replay"])
        for name, saved in state["generators"].items():
            self._generators[name].set_state(saved)
        self._updates_due = state["updates_due"]
        self._planner.refresh()


def _spread(seed: int) -> dict[str, int]:
    """Seeds for all that draws at random, unlike each other and unlike those of other agents."""
    parts = ("model", "envs", "plan", "explore", "learn")
    drawn = np.random.SeedSequence(seed).generate_state(len(parts)) >> 1  # room to count on from there
    return dict(zip(parts, drawn.tolist(), strict=True))


@contextmanager
def _beside(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """What follows goes to that stream, after all that the current one was given. None: it just runs."""
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield

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

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from dcem import Decoder
from dcem_lab.suite.agents.collect import Collector
from dcem_lab.suite.agents.controller import flat_size, step_environments
from dcem_lab.suite.agents.decoder_learner import DecoderConfig, DecoderLearner
from dcem_lab.suite.agents.planner import Planner, PlannerConfig
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM, RSSMConfig, multistep_loss
from dcem_lab.training.fit import Fit
from dcem_lab.training.learners import Learners


@dataclass(frozen=True, kw_only=True)
class OnlineConfig:
    """The agent, all but its world model. The defaults are the paper's; where it is silent, PlaNet's.

    Attributes:
        planner: the planner that collects.
        seed_episodes: S, episodes at the beginning, of random actions, before anything is learned.
        noise: standard deviation of the exploration noise.
        noise_from_zero: spread it over the environments, from 0 to `noise`, instead of the same for all.
        updates_per_step: model updates for every step of all environments; may be a fraction.
        batch, length: chunks in an update, and steps in a chunk.
        lr, eps: of Adam.
        clip: gradients are scaled down to this norm, over all members.
        average: decay of the moving average of the weights that plans; 0 for the weights themselves.
        replay_steps: steps kept in the replay buffer, over all environments.
        checkpoint_mb: a checkpoint's replay buffer holds the newest steps that fit in so many megabytes.
    """

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


@dataclass(frozen=True, kw_only=True)
class PlanetConfig(OnlineConfig):
    """The agent.

    Attributes, beside those of `OnlineConfig`:
        model: the world model.
    """

    model: RSSMConfig = field(default_factory=RSSMConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < self.model.distance:
            raise ValueError(
                f"length must be at least model.distance={self.model.distance}, got {self.length}"
            )


class ModelLearner(Fit):
    """Fits a model to chunks of the replay buffer and keeps a moving average of its weights.

    Args:
        model: learns.
        replay: where chunks come from.
        config: batch, length, lr, eps, clip and average.
        generator: of the sampling and of the loss's noise, on the model's device.
    """

    average: RSSM
    """The moving average, with the model's own statistics."""

    def __init__(self, model: RSSM, replay: ReplayBuffer, config: PlanetConfig, generator: Generator) -> None:
        super().__init__(
            model,
            lr=config.lr,
            eps=config.eps,
            clip=config.clip,
            decay=config.average,
            updates_per_step=config.updates_per_step,
            generator=generator,
        )
        self.model, self.replay, self.config = model, replay, config
        self.average.normalizer = model.normalizer

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        chunk = self.replay.sample(self.config.batch, self.config.length, self.generator)
        return multistep_loss(self.model, *chunk, generator=self.generator)


class Planet:
    """The agent in its environments; `step` is all there is to the training loop.

    With a decoder to learn it is the DCEM branch of the algorithm: it plans in the decoder's latent space,
    and every step has updates of the decoder too, on replayed states.

    Args:
        envs: the environments it collects in.
        config: the agent.
        seed: of weights, environments, planning, exploration and learning.
        device: of model, replay buffer and planner.
        model: to go on learning from, on any device; None for a new one.
        replay: the state of a replay buffer to begin with, in place of the seed episodes.
        decoder: what decoder to plan with, and how it learns; None to plan over action sequences.
        seed_planner: how it plans in the seed episodes, over action sequences; None for random actions.
        first_decoder: a decoder to go on learning, as ``decoder`` describes it; it plans the seed episodes,
            too. None for a new one.
    """

    def __init__(
        self,
        envs: ParallelEnv,
        config: PlanetConfig,
        seed: int,
        device: torch.device | str = "cpu",
        model: RSSM | None = None,
        replay: dict[str, Tensor] | None = None,
        decoder: DecoderConfig | None = None,
        seed_planner: PlannerConfig | None = None,
        first_decoder: Decoder | None = None,
    ) -> None:
        self.config, self.device = config, torch.device(device)
        obs_size, action_size = flat_size(envs.single_observation_space), flat_size(envs.single_action_space)
        seeds = spread(seed)
        if model is None:
            model = RSSM(obs_size, action_size, config.model, Generator().manual_seed(seeds["model"]))
        model = model.to(device)
        capacity = max(2, config.replay_steps // envs.num_envs)
        # Episodes shorter than a chunk are never sampled: there is no need to keep count of them.
        self.replay = ReplayBuffer(
            envs.num_envs, capacity, obs_size, action_size, device, shortest_episode=config.length
        )
        longest = max(config.length, decoder.context if decoder is not None else 0)
        self._checkpoint_bytes = round(config.checkpoint_mb * 1e6)
        least = least_checkpoint(self.replay, longest)
        if self._checkpoint_bytes < least:
            raise ValueError(f"checkpoint_mb must be at least {least / 1e6}, got {config.checkpoint_mb}")
        self._seed_episodes = config.seed_episodes if replay is None else 0
        if replay is not None:
            self.replay.load_state_dict(replay)
            self.replay.close_episodes()
            if self.replay.n_starts(longest) == 0:
                raise ValueError(f"replay must hold an episode of more than {longest} steps, got none")
        generators = {
            name: Generator(device).manual_seed(seeds[name])
            for name in ("plan", "explore", "learn", "decode")
        }
        self._generators = {name: generators[name] for name in ("plan", "explore")}
        learner = ModelLearner(model, self.replay, config, generators["learn"])
        learners: dict[str, Fit] = {"model": learner}
        self.model, self.decoder = learner.average, None
        if decoder is not None:
            first = first_decoder or decoder.decoder(model, config.planner.horizon, seeds["decoder"])
            decoder_learner = DecoderLearner(
                first.to(device), self.model, self.replay, decoder, config.planner, generators["decode"]
            )
            learners["decoder"], self.decoder = decoder_learner, decoder_learner.average
        self.learners = Learners(learners, device)
        self._planner = Planner(self.model, config.planner, self.decoder, self._generators["plan"])
        self._seed_planner = self._planner if first_decoder is not None else None
        if seed_planner is not None:
            self._seed_planner = Planner(self.model, seed_planner, None, self._generators["plan"])
        noise = torch.full((envs.num_envs,), config.noise, device=device)
        if config.noise_from_zero:
            noise *= torch.linspace(0, 1, envs.num_envs, device=device)
        self.collector = Collector(envs, self.model, self.replay, noise, self._generators["explore"])
        self.collector.restart(seeds["envs"])
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def step(self) -> None:
        """One step of every environment and the updates that go with it."""
        seeding, stopwatch = self.collector.episodes < self._seed_episodes, self.learners.stopwatch
        if not seeding:
            with _beside(self._stream):
                self.learners.step()
        with stopwatch.measure("plan"):
            actions = self.collector.act(self._seed_planner if seeding else self._planner)
        with stopwatch.measure("env", on_host=True):
            transition = step_environments(self.collector.envs, actions)
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        with stopwatch.measure("record"):
            self.collector.record(transition)
            self._planner.refresh()

    def metrics(self) -> dict[str, float]:
        """What people watch first, then what explains it. Waits for the device."""
        returns = self.collector.returns
        figures = {"return": float(np.mean(returns))} if returns else {}
        return figures | self.learners.metrics() | {"episodes": self.collector.episodes}

    def state_dict(self) -> dict[str, Any]:
        """Everything the next steps depend on, the replay buffer as far as `checkpoint_mb` allows."""
        return {
            "learners": self.learners.state_dict(),
            "collector": self.collector.state_dict(),
            "replay": self.replay.cut(self._checkpoint_bytes),
            "generators": {name: generator.get_state() for name, generator in self._generators.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`, bit for bit if its replay buffer was not cut."""
        self.learners.load_state_dict(state["learners"])
        self.collector.load_state_dict(state["collector"])
        self.replay.load_state_dict(state["replay"])
        for name, saved in state["generators"].items():
            self._generators[name].set_state(saved)
        for planner in (self._planner, self._seed_planner):
            if planner is not None:
                planner.refresh()


def least_checkpoint(replay: ReplayBuffer, longest: int) -> int:
    """Bytes of a cut replay buffer from which learning on chunks of up to `longest` steps can go on.

    An open episode that is not yet long enough for a chunk has up to `longest` places, and a chunk of the
    episode before it one more.
    """
    return replay.state_bytes(min(replay.capacity, 2 * longest + 1))


def spread(seed: int) -> dict[str, int]:
    """Seeds for all that draws at random, unlike each other; agents of one seed have the same."""
    parts = ("model", "envs", "plan", "explore", "learn", "decoder", "decode")
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

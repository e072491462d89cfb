"""Builds agents from their parts: replay buffer, learners, planners, collector."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from dcem import Decoder
from dcem_lab.runs import require
from dcem_lab.suite.agents.collect import CollectingConfig, Collector
from dcem_lab.suite.agents.decoder_learner import DecoderConfig, DecoderLearner
from dcem_lab.suite.agents.model_learner import LearningConfig, ModelLearner
from dcem_lab.suite.agents.offline import Offline, digest
from dcem_lab.suite.agents.plan_learner import PlanConfig, PlanLearner
from dcem_lab.suite.agents.planet import Planet
from dcem_lab.suite.agents.planner import Planner, PlannerConfig
from dcem_lab.suite.agents.value import Value
from dcem_lab.suite.agents.value_learner import ValueConfig, ValueLearner
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.replay import ReplayBuffer, shortest_sampled
from dcem_lab.suite.rssm import RSSM
from dcem_lab.training.fit import Fit
from dcem_lab.training.learners import Learners


@dataclass(frozen=True)
class AgentConfig:
    """What an agent in environments is made of, and how that learns."""

    learning: LearningConfig  # of its world model
    collecting: CollectingConfig
    planner: PlannerConfig  # in latent space where there is a decoder
    decoder: DecoderConfig | None = None  # None to plan over action sequences
    value: ValueConfig | None = None  # None to plan to the horizon alone
    plan: PlanConfig | None = None  # to please the critics; None, or 0 updates per step, for not at all

    def __post_init__(self) -> None:
        share, plans = self.collecting.policy_share, self.planner.policy_plans
        for name, given in (("policy_share", share), ("planner.policy_plans", plans)):
            require(
                self.value is not None or not given, name, given, "0 without a value, which has the policy"
            )
        steps = self.collecting.policy_steps
        require(share > 0 or not steps, "policy_steps", steps, "0 without a policy_share")
        require(self.decoder is None or not plans, "planner.policy_plans", plans, "0 in a latent space")

    @property
    def lengths(self) -> dict[str, int]:
        """Of the chunks that it learns on, by setting."""
        context = {"decoder.context": self.decoder.context} if self.decoder is not None else {}
        steps = {"value.steps": self.value.replayed_steps} if self.value is not None else {}
        return {**context, **steps, "length": self.learning.length}

    def replay(
        self, n_envs: int, obs_dim: int, action_dim: int, terminates: bool, device: torch.device | str
    ) -> tuple[ReplayBuffer, int]:
        """An empty replay buffer, and the bytes of it that a checkpoint keeps; ValueError if too few.

        It must be enough to continue learning on chunks of up to L steps. An open episode that is too short
        for a chunk takes up to L entries, and a chunk of the previous episode one more than its steps.
        """
        capacity = max(2, self.collecting.replay_steps // n_envs)
        shortest = shortest_sampled(self.learning.length, terminates)
        replay = ReplayBuffer(n_envs, capacity, obs_dim, action_dim, device, shortest)
        least = replay.state_bytes(min(capacity, 2 * max(self.lengths.values()) + 1)) / 1e6
        megabytes = self.collecting.checkpoint_mb
        require(megabytes >= least, "checkpoint_mb", megabytes, f"at least {least}")
        return replay, round(megabytes * 1e6)


@dataclass(frozen=True)
class Beginning:
    """What an agent has before its first step, on any device.

    Decoder and value go on learning, as the config describes them; None for new ones.
    """

    model: RSSM
    decoder: Decoder | None = None  # plans the seed episodes, too
    replay: dict[str, Tensor] | None = None  # the state of a buffer, in place of the seed episodes
    planner: PlannerConfig | None = None  # of seed episodes without a decoder; None for random actions
    value: Value | None = None


def build(
    envs: ParallelEnv, config: AgentConfig, begin: Beginning, seed: int, device: torch.device | str = "cpu"
) -> Planet:
    """The agent in environments. The seed is that of a decoder, environments, planning and learning."""
    seeds = spread(seed)
    random = {
        name: Generator(device).manual_seed(seeds[name])
        for name in ("plan", "explore", "learn", "decode", "judge", "please")
    }
    model = begin.model.to(device)
    terminates = model.config.termination
    replay, checkpoint_bytes = config.replay(
        envs.num_envs, model.obs_dim, model.action_dim, terminates, device
    )
    if begin.replay is not None:
        longest = max(config.lengths.values())
        replay.load_state_dict(begin.replay)
        replay.close_episodes()
        if replay.n_starts(longest, padded=terminates) == 0:
            raise ValueError(f"replay must hold an episode of more than {longest} steps, got none")

    model_learner = ModelLearner(model, replay, config.learning, random["learn"])
    learners: dict[str, Fit] = {"model": model_learner}
    planning, decoder, value = model_learner.average, None, None
    if config.value is not None:
        judging = begin.value or config.value.value(model, seeds["value"])
        value_learner = ValueLearner(judging.to(device), planning, replay, config.value, random["judge"])
        learners["value"], value = value_learner, value_learner.average
    if config.decoder is not None:
        first = begin.decoder or config.decoder.decoder(model, config.planner.horizon, seeds["decoder"])
        decoder_learner = DecoderLearner(
            first.to(device), planning, replay, config.decoder, config.planner, random["decode"], value
        )
        learners["decoder"], decoder = decoder_learner, decoder_learner.average
        if value is not None and config.plan is not None and config.plan.updates_per_step:
            learners["plan"] = PlanLearner(model, decoder_learner, config.plan, random["please"])

    by_policy = config.collecting.by_policy(envs.num_envs, device)
    planner = Planner(planning, config.planner, decoder, random["plan"], value, by_policy)
    seed_planner = planner if begin.decoder is not None else None
    if begin.planner is not None:
        seed_planner = Planner(planning, begin.planner, None, random["plan"], value)
    noise = config.collecting.noise_in(envs.num_envs, device)
    collector = Collector(envs, planning, replay, noise, random["explore"], config.collecting.correlation)
    collector.restart(seeds["envs"])
    anew = begin.replay is None
    return Planet(
        Learners(learners, device),
        collector,
        planner,
        generators={name: random[name] for name in ("plan", "explore")},
        checkpoint_bytes=checkpoint_bytes,
        seed_episodes=config.collecting.seed_episodes * anew,
        seed_steps=config.collecting.seed_steps * anew,
        seed_planner=seed_planner,
        policy_steps=config.collecting.policy_steps,
    )


def build_offline(
    model: RSSM,
    replay: dict[str, Tensor],
    config: DecoderConfig,
    planner: PlannerConfig,
    seed: int,
    device: torch.device | str = "cpu",
    value: Value | None = None,
) -> Offline:
    """A new decoder for a model, to be trained on the state of a replay buffer; both are frozen.

    So is the value, if plans end in one.
    """
    given, seeds = digest(model.state_dict()) + digest(replay), spread(seed)
    if value is not None:
        given += digest(value.state_dict())
        value = value.requires_grad_(False).to(device)
    model = model.requires_grad_(False).to(device)
    n_envs, capacity = replay["rewards"].shape
    shortest = shortest_sampled(config.context, model.config.termination)
    buffer = ReplayBuffer(n_envs, capacity, model.obs_dim, model.action_dim, device, shortest)
    buffer.load_state_dict(replay)
    decoder = config.decoder(model, planner.horizon, seeds["decoder"]).to(device)
    generator = Generator(device).manual_seed(seeds["decode"])
    return Offline(DecoderLearner(decoder, model, buffer, config, planner, generator, value), given)


def spread(seed: int) -> dict[str, int]:
    """Distinct seeds for all random generators, determined by the agent's seed."""
    parts = ("model", "envs", "plan", "explore", "learn", "decoder", "decode", "value", "judge", "please")
    drawn = np.random.SeedSequence(seed).generate_state(len(parts)) >> 1  # room to count on from there
    return dict(zip(parts, drawn.tolist(), strict=True))

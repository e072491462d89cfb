"""Shared by experiments with an agent in environments: settings of the loop, checks, evaluations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from dcem_lab.runs import require
from dcem_lab.runs.settings import Settings, setting
from dcem_lab.suite.agents import AgentConfig, LearningConfig, ValueConfig
from dcem_lab.suite.agents.controller import flat_size
from dcem_lab.suite.envs.dmc import ControlEnv, DMCEnv
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.replay import ReplayBuffer, shortest_sampled
from dcem_lab.suite.rssm import RSSMConfig
from dcem_lab.suite.trained import Trained
from dcem_lab.training.loop import Schedule, every

MEMORY = 200
"""Environment steps after which a reward is discounted by 1/e, if the discount is left to the task."""

SELECTION_SEED = 2_000_000
"""First seed of the episodes that select the best weights, separate from those of training and `eval`."""

FINETUNE_SELECTION_SEED = 2_100_000
"""The same for fine-tuning: the initial weights were selected on the episodes above, which biases them."""


@dataclass(frozen=True, kw_only=True)
class LoopConfig(Settings):
    """The loop around an agent.

    Attributes:
        n_envs: number of parallel environments.
        n_workers: worker processes for the environments; 0 to run them in the main process.
        eval_every: environment steps (phase 3: PPO steps) between evaluations; the best weights are kept.
        eval_episodes: episodes per evaluation, in parallel.
        save_every: seconds between checkpoints.
    """

    n_envs: int = setting(16, least=1)
    n_workers: int = setting(16, least=0)
    eval_every: int = setting(20_000, least=1)
    eval_episodes: int = setting(32, least=1)
    save_every: float = setting(300.0, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.n_workers <= self.n_envs, "n_workers", self.n_workers, f"from 0 to {self.n_envs}")


@dataclass(frozen=True, kw_only=True)
class StepLoopConfig(LoopConfig):
    """The loop around one that learns at every step of the environments.

    Attributes, in addition to those of `LoopConfig`:
        env_steps: environment steps of training, over all environments, including action repeats.
        log_every: agent steps between log entries.
    """

    env_steps: int = setting(2_000_000, least=1)
    log_every: int = setting(100, least=1)

    def schedule(self, action_repeat: int) -> Schedule:
        """Counted in steps of the agent."""
        at_once = self.n_envs * action_repeat
        steps = math.ceil(self.env_steps / at_once)
        return Schedule(
            steps=steps,
            env_steps=at_once,
            evaluations=every(self.eval_every / at_once, steps),
            log_every=self.log_every,
            save_every=self.save_every,
        )


def value_for(config: ValueConfig, env: ControlEnv) -> ValueConfig:
    """How a value learns on that task, with the discount and the bound that are left to it."""
    gamma = config.gamma if config.gamma is not None else max(0.0, 1 - env.action_repeat / MEMORY)
    bound = config.bound
    if bound is None and isinstance(env, DMCEnv):
        bound = env.action_repeat / (1 - gamma)
    return replace(config, gamma=gamma, bound=bound)


def require_chunks(env: ControlEnv, n_envs: int, replay_steps: int, lengths: Mapping[str, int]) -> None:
    """Chunks of these lengths, by setting, must fit into an episode and an environment's share of replay."""
    longest = env.episode_actions
    for name, length in lengths.items():
        if longest is not None:
            require(length <= longest, name, length, f"at most {longest}, the actions of an episode")
        least = n_envs * (length + 1)
        allowed = f"at least {least}, for chunks of {name}={length} in {n_envs} environments"
        require(replay_steps >= least, "replay_steps", replay_steps, allowed)


def require_room(env: ControlEnv, n_envs: int, config: AgentConfig, model: RSSMConfig) -> None:
    """The chunks that an agent learns on must fit into what there is, and into a checkpoint."""
    require_chunks(env, n_envs, config.collecting.replay_steps, config.lengths)
    sizes = flat_size(env.observation_space), flat_size(env.action_space)
    config.replay(n_envs, *sizes, env.terminates, "meta")  # its size is all that matters
    require_distance(config.learning, model)


def require_distance(learning: LearningConfig, model: RSSMConfig) -> None:
    """A chunk must be as long as what is predicted open loop in it."""
    least = f"at least model.distance={model.distance}"
    require(learning.length >= model.distance, "length", learning.length, least)


def require_replay(
    source: Trained, name: str, n_envs: int | None, lengths: Mapping[str, int]
) -> dict[str, Tensor]:
    """Its replay buffer, if this many environments can continue it and sample chunks of these lengths."""
    replay, model = source.replay, source.model
    if replay is None:
        raise ValueError(f"keep_replay must be false: {name} has no replay buffer")
    theirs, capacity = replay["rewards"].shape
    require(n_envs in (theirs, None), "n_envs", n_envs, f"{theirs}, as in the replay of {name} that is kept")
    padded = model.config.termination
    shortest = shortest_sampled(min(lengths.values()), padded)
    buffer = ReplayBuffer(theirs, capacity, model.obs_dim, model.action_dim, shortest_episode=shortest)
    buffer.load_state_dict(replay)
    buffer.close_episodes()
    for field, length in lengths.items():
        fits = int(buffer.n_starts(length, padded=padded)) > 0
        require(fits, field, length, f"below the steps of some episode in the replay of {name}")
    return replay


@contextmanager
def evaluations(
    trained: Trained, make: Callable[..., ControlEnv], loop: LoopConfig, first_seed: int = SELECTION_SEED
) -> Iterator[Callable[[], dict[str, float]]]:
    """An evaluator for a controller in training: episodes from the same seeds, in its own environments."""
    controller, seeds = trained.controller(), range(first_seed, first_seed + loop.eval_episodes)

    def evaluate() -> dict[str, float]:
        start = time.monotonic()
        returns = [episode.total for episode in controller.play(envs, seeds)]
        q1, median, q3 = np.percentile(returns, [25, 50, 75]).tolist()
        seconds = time.monotonic() - start
        figures = {"mean": float(np.mean(returns)), "median": median, "q1": q1, "q3": q3, "seconds": seconds}
        return {f"eval/{name}": value for name, value in figures.items()}

    workers = min(loop.n_workers, loop.eval_episodes)
    with closing(ParallelEnv(make, loop.eval_episodes, workers)) as envs:
        yield evaluate

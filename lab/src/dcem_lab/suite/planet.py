"""The paper's phase 1: a world model learned online while the cross-entropy method controls the robot."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from torch import Generator

from dcem_lab.runs import Run, require
from dcem_lab.runs.settings import setting
from dcem_lab.suite import online
from dcem_lab.suite.agents import AgentConfig, Beginning, CollectingConfig, LearningConfig, PlannerConfig
from dcem_lab.suite.agents.build import build, spread
from dcem_lab.suite.agents.controller import flat_size
from dcem_lab.suite.envs.dmc import ControlEnv, make_env, probe
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.trained import Trained, load_from
from dcem_lab.training.devices import DEVICES, training_device
from dcem_lab.training.loop import train

ANGLES = {
    "cheetah-run": (1,),
    "HalfCheetah-v5": (1,),
    "hopper-hop": (1,),
    "hopper-stand": (1,),
    "reacher-easy": (0,),
    "reacher-hard": (0,),
}
"""Observations that are unbounded angles: the pitch of cheetah and hopper, the reacher's shoulder."""

_NOT_OF_THE_NETWORK = ("std", "sample", "loss", "reward_weight", "distance", "pessimism")
"""What may change about a model while its weights stay."""


@dataclass(frozen=True, kw_only=True)
class Config(LearningConfig):
    """Phase 1: learn a world model of a task, and plan in it with CEM over action sequences.

    Settings without a prefix are those of the run and of the world model's training.

    Attributes, in addition to those of `LearningConfig`:
        seed: seed of all random numbers.
        device: cpu, cuda, or auto for cuda if available.
        task: a task of the control suite or a Gymnasium id.
        action_repeat: environment steps per action; null for the task's default.
        source: a run folder or the name of pretrained weights to continue from, with its replay buffer if it
            has one (otherwise seed episodes planned with its model); `from=` on the command line.
        wrap_angles: encode observations that are angles as sine and cosine.
        model: the world model; it predicts terminations if the task can terminate.
        planner: planner for collecting data.
        evaluation: planner for evaluations.
        collecting: exploration and replay buffer.
        loop: training loop.
    """

    seed: int = 0
    device: str = setting("auto", among=DEVICES)
    task: str = "cheetah-run"
    action_repeat: int | None = setting(None, least=1)
    source: str = ""
    wrap_angles: bool = False
    model: RSSMConfig = RSSMConfig()
    planner: PlannerConfig = PlannerConfig()
    evaluation: PlannerConfig = PlannerConfig()
    collecting: CollectingConfig = CollectingConfig()
    loop: online.StepLoopConfig = online.StepLoopConfig(eval_every=200_000, eval_episodes=16)

    def __post_init__(self) -> None:
        super().__post_init__()
        online.require_distance(self, self.model)

    def agent_for(self, env: ControlEnv) -> AgentConfig:
        """The agent for an environment of the task, all but its world model."""
        return AgentConfig(self, self.collecting, self.planner)

    @property
    def world_model(self) -> RSSMConfig:
        """The model, with what it should know about the task."""
        return replace(self.model, angles=ANGLES.get(self.task, ())) if self.wrap_angles else self.model


ENSEMBLE = RSSMConfig(
    activation="gelu", residual=True, normalize=True, predict_std=False, sample=False, loss="rmse",
    reward_weight=2.0, members=3, pessimism=0.5,
)  # fmt: skip
"""A small ensemble with pessimistic planning: a planner exploits the errors of a single model."""

_GYM_MODEL = RSSMConfig(
    hidden=32, width=64, layers=1, activation="elu", residual=True, normalize=True, predict_std=False,
    sample=False, loss="rmse", distance=8, scale_rewards=True,
)  # fmt: skip
_GYM_PLANNER = PlannerConfig(samples=64, elites=8, iterations=3, horizon=15)
_TINY_PLANNER = PlannerConfig(samples=20, elites=4, iterations=2, horizon=4)

_PAPER: dict[str, object] = {
    "planner": PlannerConfig(dtype="float16"),
    "evaluation": PlannerConfig(dtype="float16"),
}

PRESETS: dict[str, dict[str, object]] = {
    "tiny": {
        "model": RSSMConfig(hidden=16, width=16, distance=4),
        "planner": _TINY_PLANNER,
        "evaluation": _TINY_PLANNER,
        "collecting": CollectingConfig(seed_episodes=2, replay_steps=2_000),
        "batch": 8,
        "length": 10,
        "loop": online.StepLoopConfig(
            env_steps=2_400, n_envs=2, n_workers=0, eval_every=2_400, eval_episodes=2, log_every=25
        ),
        "device": "cpu",
    },
    # For Gymnasium's tasks of few dimensions: a small model in a small plan, on a CPU, rewards of any scale.
    "gym": {
        "model": _GYM_MODEL,
        "planner": _GYM_PLANNER,
        "evaluation": _GYM_PLANNER,
        "collecting": CollectingConfig(seed_steps=500, noise_from_zero=True, replay_steps=100_000),
        "batch": 16,
        "length": 20,
        "updates_per_step": 2.0,
        "clip": 20.0,
        "average": 0.99,
        "loop": online.StepLoopConfig(
            env_steps=20_000, n_envs=4, n_workers=0, eval_every=4_000, eval_episodes=4, log_every=50
        ),
    },
    # The paper's setting; where it is silent, what helps a single model (see the deviations page).
    "paper": {
        **_PAPER,
        "model": RSSMConfig(normalize=True, std=0.01, sample=False, reward_weight=10.0),
        "updates_per_step": 2.0,
        "clip": 20.0,
        "average": 0.995,
    },
    # The same with nothing chosen: raw observations, PlaNet's least deviation, samples in training, and its
    # 100 updates per episode of 250 actions, 16 environments at once.
    "paper-raw": {**_PAPER, "updates_per_step": 6.4},
    "best": {
        "model": ENSEMBLE,
        "planner": PlannerConfig(samples=400, elites=40, iterations=8, dtype="float16"),
        "evaluation": PlannerConfig(dtype="float16"),
        "wrap_angles": True,
        "collecting": CollectingConfig(noise_from_zero=True),
        "updates_per_step": 2.0,
        "clip": 20.0,
        "average": 0.995,
    },
}


def check(config: Config) -> None:
    """Check that the task exists, with the angles to encode, and that the source to continue from fits."""
    if config.source:
        _from_source(config)
    env = probe(environment(config))
    online.require_room(env, config.loop.n_envs, config.agent_for(env), config.model)
    angles, size = config.world_model.angles, flat_size(env.observation_space)
    require(max(angles, default=0) < size, "model.angles", angles, f"below {size}, the observation's size")


def run(config: Config, run: Run) -> None:
    """Train, evaluate at intervals, and store the best and the last weights in the run's checkpoint."""
    device, make, loop = training_device(config.device), environment(config), config.loop
    env = probe(make)
    settings, schedule = config.agent_for(env), loop.schedule(env.action_repeat)
    with closing(ParallelEnv(make, loop.n_envs, loop.n_workers)) as envs:
        begin = _from_source(config) if config.source else _anew(config, envs)
        agent = build(envs, settings, begin, config.seed, device)
        trained = Trained(
            config.task, config.action_repeat, config.evaluation, agent.model, value=agent.value
        )
        with online.evaluations(trained, make, loop) as evaluate:
            train(run, agent, trained, evaluate, schedule)


def _anew(config: Config, envs: ParallelEnv) -> Beginning:
    sizes = flat_size(envs.single_observation_space), flat_size(envs.single_action_space)
    generator = Generator().manual_seed(spread(config.seed)["model"])
    model = replace(config.world_model, termination=envs.terminates or config.model.termination)
    return Beginning(RSSM(*sizes, model, generator))


def _from_source(config: Config) -> Beginning:
    """The model and the data of another run."""
    source, name = load_from(config.source), config.source
    require(source.task == config.task, "task", config.task, f"{source.task}, as in {name}")
    repeat, theirs = (probe(make).action_repeat for make in (environment(config), source.environment()))
    require(repeat == theirs, "action_repeat", repeat, f"{theirs}, as in {name}")
    ours = replace(config.world_model, termination=source.model.config.termination)
    for part, value in vars(source.model.config).items():
        if part not in _NOT_OF_THE_NETWORK:
            given = getattr(ours, part)
            require(given == value, f"model.{part}", given, f"{value}, as in {name}: is a preset missing?")
    model = RSSM(source.model.obs_dim, source.model.action_dim, ours)
    model.load_state_dict(source.model.state_dict())
    if source.replay is None:
        return Beginning(model, planner=config.planner, value=source.value)
    replay = online.require_replay(source, name, config.loop.n_envs, {"length": config.length})
    return Beginning(model, replay=replay, value=source.value)


def environment(config: Config) -> Callable[..., ControlEnv]:
    """A function that makes one environment of the task; it takes a `render_mode`."""
    return partial(make_env, config.task, config.action_repeat)

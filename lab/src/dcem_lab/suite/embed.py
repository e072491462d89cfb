"""The paper's phase 2: a latent action space, learned with DCEM on top of a learned model."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Generator

from dcem import Decoder
from dcem_lab.runs import Run, require
from dcem_lab.suite.agents import (
    DecoderConfig,
    Offline,
    OnlineConfig,
    Planet,
    PlanetConfig,
    PlannerConfig,
)
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.online import (
    StepLoopConfig,
    evaluations,
    require_checkpoint,
    require_chunks,
    require_replay,
    schedule,
    training_device,
)
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.trained import Trained, load, load_from
from dcem_lab.training.loop import train


@dataclass(frozen=True, kw_only=True)
class Config(OnlineConfig, StepLoopConfig):
    """A run of phase 1 to start from, a decoder to learn on it, and how often to look at it.

    Attributes, beside those of the agent (`OnlineConfig`), of the loop (`StepLoopConfig`) and of
    the decoder (`DecoderConfig`):
        source: a run folder or the name of weights that ship; `from=` on the command line.
        keep_model: start with its model, instead of a new one of the same kind.
        keep_decoder: start with its decoder, where it is a run of this phase, and let that one control the
            seed episodes, if there are any.
        keep_replay: start with its replay buffer, instead of seed episodes, which a source of phase 1
            controls itself where its model is kept; else their actions are random.
        offline: learn the decoder on its replay buffer alone, without an environment (Algorithm 2), in as
            many updates as `env_steps` would come with.
        planner: how to plan, in the latent space, while learning, collecting and evaluating.
        pessimism: of the planner's reward; null for that of the model to start from.
        decoder: the decoder, and how it learns.
    """

    source: str = ""
    keep_model: bool = True
    keep_decoder: bool = False
    keep_replay: bool = True
    offline: bool = False
    planner: PlannerConfig = field(
        default_factory=lambda: PlannerConfig(samples=100, elites=10, tau=1.0, dtype="float16")
    )
    pessimism: float | None = None
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    noise_from_zero: bool = True
    updates_per_step: float = 2.0
    clip: float = 20.0
    average: float = 0.995
    env_steps: int = 500_000

    def __post_init__(self) -> None:
        OnlineConfig.__post_init__(self)
        StepLoopConfig.__post_init__(self)
        lenient = self.pessimism is None or self.pessimism >= 0
        require(lenient, "pessimism", self.pessimism, "null or not negative")
        require(not (self.keep_decoder and self.offline), "keep_decoder", True, "false with offline=true")
        require(not self.keep_decoder or self.keep_model, "keep_decoder", True, "false with keep_model=false")
        for name in ("keep_model", "keep_replay"):
            require(not self.offline or getattr(self, name), name, False, "true with offline=true")
        require(not (self.offline and self.decoder.recent), "decoder.recent", self.decoder.recent,
                "0 with offline=true, where nothing is newer than the rest")  # fmt: skip
        require(self.planner.tau > 0 or self.decoder.backward == "detach", "planner.tau", self.planner.tau,
                "positive unless decoder.backward is detach: the hard top-k passes no gradient")  # fmt: skip


PRESETS: dict[str, dict[str, object]] = {
    "tiny": {
        "planner": PlannerConfig(samples=10, elites=2, iterations=2, horizon=3, tau=1.0),
        "decoder": DecoderConfig(latent_dim=2, hidden=(16,), states=4, context=5),
        "updates_per_step": 0.5,
        "seed_episodes": 2,
        "batch": 8,
        "length": 10,
        "replay_steps": 2_000,
        "env_steps": 600,
        "n_envs": 2,
        "n_workers": 0,
        "eval_every": 200,
        "eval_episodes": 2,
        "log_every": 25,
        "device": "cpu",
    },
    # A sharper top-k, whose search does more of the work, and fewer iterations; calmer weights.
    "best": {
        "planner": PlannerConfig(samples=100, elites=10, iterations=5, tau=0.2, dtype="float16"),
        "decoder": DecoderConfig(average=0.999),
        "updates_per_step": 0.5,
    },
}


def check(config: Config) -> None:
    """ValueError unless there is a source that this config can start from."""
    source = load_from(config.source)
    first_decoder(source, config)
    if not config.offline:
        agent_config(config, source.model.config)
        with closing(source.environment()()) as env:
            require_chunks(env, config, config.replay_steps, _lengths(config))
            require_checkpoint(env, config, config, _lengths(config))
    _replay(config, source)


def run(config: Config, run: Run) -> None:
    """Train, evaluate at intervals, and leave the best and the last weights in the run's checkpoint."""
    device, source = training_device(config.device), load(config.source)
    model = first_model(source, config)
    make = source.environment()
    with closing(make()) as probe:
        action_repeat = probe.action_repeat
    with ExitStack() as stack:
        agent: Planet | Offline
        if config.offline:
            agent = _offline(config, source, model, device)
        else:
            envs = stack.enter_context(closing(ParallelEnv(make, config.n_envs, config.n_workers)))
            agent = _online(config, source, model, envs, device)
        trained = Trained(source.task, source.action_repeat, config.planner, agent.model, agent.decoder)
        evaluate = stack.enter_context(evaluations(trained, make, config))
        train(run, agent, trained, evaluate, schedule(config, action_repeat))


def first_model(source: Trained, config: Config) -> RSSM:
    """The model to begin with.

    The normaliser's statistics are those of the data: they stay with the model and with the replay buffer.
    """
    settings = source.model.config
    if config.pessimism is not None:
        settings = replace(settings, pessimism=config.pessimism)
    theirs = source.model
    model = RSSM(theirs.obs_dim, theirs.action_dim, settings, Generator().manual_seed(config.seed))
    if config.keep_model:
        model.load_state_dict(theirs.state_dict())
    elif config.keep_replay:
        model.normalizer.load_state_dict(theirs.normalizer.state_dict())
    return model


def first_decoder(source: Trained, config: Config) -> Decoder | None:
    """The decoder to begin with, if it is not a new one."""
    if not config.keep_decoder:
        return None
    theirs = source.decoder
    if theirs is None:
        raise ValueError(f"keep_decoder must be false: {config.source} has no decoder")
    ours = config.decoder.decoder(source.model, config.planner.horizon, config.seed)
    for name, value in ours.settings.items():
        allowed = f"what it is in {config.source}, {theirs.settings[name]}"
        require(value == theirs.settings[name], f"the decoder's {name}", value, allowed)
    return theirs


def agent_config(config: Config, model: RSSMConfig) -> PlanetConfig:
    """The agent that learns online."""
    return PlanetConfig(model=model, **{f.name: getattr(config, f.name) for f in fields(OnlineConfig)})


def _online(config: Config, source: Trained, model: RSSM, envs: ParallelEnv, device: torch.device) -> Planet:
    agent = agent_config(config, model.config)
    replay = _replay(config, source)
    seed_planner = source.planner if config.keep_model and source.decoder is None else None
    return Planet(
        envs, agent, config.seed, device, model, replay,
        config.decoder, seed_planner, first_decoder(source, config),
    )  # fmt: skip


def _offline(config: Config, source: Trained, model: RSSM, device: torch.device) -> Offline:
    replay = _replay(config, source)
    assert replay is not None
    return Offline(model, replay, config.decoder, config.planner, config.seed, device)


def _replay(config: Config, source: Trained) -> dict[str, torch.Tensor] | None:
    """The replay buffer to begin with, if it is not a new one."""
    if not config.keep_replay:
        return None
    n_envs = None if config.offline else config.n_envs
    return require_replay(source, config.source, n_envs, _lengths(config))


def _lengths(config: Config) -> dict[str, int]:
    """Of the chunks that it learns on, by setting."""
    return {"decoder.context": config.decoder.context} | ({} if config.offline else {"length": config.length})

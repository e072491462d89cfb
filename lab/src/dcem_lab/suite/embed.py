"""The paper's phase 2: a latent action space, learned with DCEM on top of a learned model."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from torch import Generator, Tensor

from dcem import Decoder
from dcem_lab.runs import Run, require
from dcem_lab.runs.settings import resetting, setting
from dcem_lab.suite import agents, online
from dcem_lab.suite.envs.dmc import ControlEnv, probe
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.rssm import RSSM
from dcem_lab.suite.trained import Trained, load, load_from
from dcem_lab.training.devices import DEVICES, training_device
from dcem_lab.training.loop import train


@dataclass(frozen=True, kw_only=True)
class Config(agents.LearningConfig):
    """Phase 2: learn a decoder, whose latent space DCEM searches instead of action sequences.

    Settings without a prefix are those of the run and of the world model, which keeps learning.

    Attributes, in addition to those of `LearningConfig`:
        seed: seed of all random numbers.
        device: cpu, cuda, or auto for cuda if available.
        source: a run folder or the name of pretrained weights; `from=` on the command line.
        keep_model: start with the source's model instead of a new one.
        keep_decoder: start with the source's decoder, if it is a run of this phase, and use it in the seed
            episodes.
        keep_replay: start with the source's replay buffer instead of seed episodes. A phase-1 source plays
            the seed episodes if its model is kept; otherwise they have random actions.
        keep_value: plan with the source's value, if it has one, and keep training it.
        offline: train the decoder on the replay buffer only, without an environment (Algorithm 2), for as
            many updates as `env_steps` imply.
        pessimism: pessimism of the planner's reward; null for that of the source.
        planner: planner in the latent space, for learning, collecting and evaluating.
        decoder: the decoder and its training.
        value: training of the value, if there is one; its networks are those of the source.
        plan: how plans learn to please its critics: phase 3 off policy, where the decoder is kept and neither
            it nor the model learns otherwise (`preset=improve`).
        collecting: exploration and replay buffer.
        loop: training loop.
    """

    seed: int = 0
    device: str = setting("auto", among=DEVICES)
    source: str = ""
    keep_model: bool = True
    keep_decoder: bool = False
    keep_replay: bool = True
    keep_value: bool = True
    offline: bool = False
    pessimism: float | None = setting(None, least=0)
    updates_per_step: float = resetting(agents.LearningConfig, "updates_per_step", 2.0)
    clip: float = resetting(agents.LearningConfig, "clip", 20.0)
    average: float = resetting(agents.LearningConfig, "average", 0.995)
    planner: agents.PlannerConfig = agents.PlannerConfig(samples=100, elites=10, tau=1.0, dtype="float16")
    decoder: agents.DecoderConfig = agents.DecoderConfig()
    value: agents.ValueConfig = agents.ValueConfig(early_share=0.25)
    plan: agents.PlanConfig = agents.PlanConfig()
    collecting: agents.CollectingConfig = agents.CollectingConfig(noise_from_zero=True)
    loop: online.StepLoopConfig = online.StepLoopConfig(env_steps=500_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not (self.keep_decoder and self.offline), "keep_decoder", True, "false with offline=true")
        require(not self.keep_decoder or self.keep_model, "keep_decoder", True, "false with keep_model=false")
        for name in ("keep_model", "keep_replay"):
            require(not self.offline or getattr(self, name), name, False, "true with offline=true")
        require(not (self.offline and self.plan.updates_per_step), "plan.updates_per_step",
                self.plan.updates_per_step, "0 with offline=true")  # fmt: skip
        require(not (self.offline and self.decoder.recent), "decoder.recent", self.decoder.recent,
                "0 with offline=true, where nothing is newer than the rest")  # fmt: skip
        require(self.planner.tau > 0 or self.decoder.backward == "detach", "planner.tau", self.planner.tau,
                "positive unless decoder.backward is detach: the hard top-k passes no gradient")  # fmt: skip

    def agent_for(self, env: ControlEnv, value: agents.Value | None) -> agents.AgentConfig:
        """The agent that learns online in an environment of the task, all but its world model."""
        learning = None
        if value is not None:
            theirs = {name: value.settings[name] for name in self.value.NETWORK}
            learning = online.value_for(replace(self.value, **theirs), env)
        return agents.AgentConfig(self, self.collecting, self.planner, self.decoder, learning, self.plan)


_RESIDUAL = agents.DecoderConfig(residual=True, average=0.999, start_share=0.25)

PRESETS: dict[str, dict[str, object]] = {
    "tiny": {
        "planner": agents.PlannerConfig(samples=10, elites=2, iterations=2, horizon=3, tau=1.0),
        "decoder": agents.DecoderConfig(latent_dim=2, hidden=(16,), states=4, context=5),
        "collecting": agents.CollectingConfig(seed_episodes=2, replay_steps=2_000, noise_from_zero=True),
        "updates_per_step": 0.5,
        "batch": 8,
        "length": 10,
        "loop": online.StepLoopConfig(
            env_steps=600, n_envs=2, n_workers=0, eval_every=200, eval_episodes=2, log_every=25
        ),
        "device": "cpu",
    },
    # A sharper top-k, whose search does more of the work, and fewer iterations; calmer weights.
    "best": {
        "planner": agents.PlannerConfig(samples=100, elites=10, iterations=5, tau=0.2, dtype="float16"),
        "decoder": agents.DecoderConfig(average=0.999),
        "updates_per_step": 0.5,
    },
    # Corrections of the policy's plan, from a source with a value.
    "value": {
        "planner": agents.PlannerConfig(
            samples=100, elites=10, iterations=5, horizon=6, tau=0.2, dtype="float16"
        ),
        "decoder": _RESIDUAL,
        "collecting": agents.CollectingConfig(noise_from_zero=True, policy_share=0.25),
        "early_chunks": 0.2,
    },
}
# Phase 3 off policy: the critics, and parts of what plans through the plan; all else stays as it is.
PRESETS["improve"] = {
    **PRESETS["value"],
    "keep_decoder": True,
    "decoder": replace(_RESIDUAL, updates_per_step=0.0),
    "updates_per_step": 0.0,
    "plan": agents.PlanConfig(updates_per_step=1.0),
}


def check(config: Config) -> None:
    """ValueError unless there is a source that this config can start from."""
    source = load_from(config.source)
    first_decoder(source, config)
    value = source.value if config.keep_value else None
    for name, wanted in (
        ("decoder.residual", config.decoder.residual),
        ("plan.updates_per_step", config.plan.updates_per_step > 0),
    ):
        require(not wanted or value is not None, name, wanted, f"left out: {config.source} has no value")
    env = probe(source.environment())
    settings = config.agent_for(env, value)
    if not config.offline:
        online.require_room(env, config.loop.n_envs, settings, source.model.config)
    _replay(config, source, settings)


def run(config: Config, run: Run) -> None:
    """Train, evaluate at intervals, and leave the best and the last weights in the run's checkpoint."""
    device, loop, source = training_device(config.device), config.loop, load(config.source)
    model, make = first_model(source, config), source.environment()
    env, value = probe(make), source.value if config.keep_value else None
    settings, schedule = config.agent_for(env, value), loop.schedule(env.action_repeat)
    replay = _replay(config, source, settings)
    agent: agents.Planet | agents.Offline
    with ExitStack() as stack:
        if config.offline:
            assert replay is not None
            agent = agents.build_offline(
                model, replay, config.decoder, config.planner, config.seed, device, value
            )
        else:
            envs = stack.enter_context(closing(ParallelEnv(make, loop.n_envs, loop.n_workers)))
            # A source of phase 1 plans the seed episodes as it was made to: over action sequences.
            whole = config.keep_model and value is source.value
            theirs = source.planner if whole and source.decoder is None else None
            begin = agents.Beginning(model, first_decoder(source, config), replay, theirs, value)
            agent = agents.build(envs, settings, begin, config.seed, device)
        trained = Trained(
            source.task, source.action_repeat, config.planner, agent.model, agent.decoder, agent.value
        )
        evaluate = stack.enter_context(online.evaluations(trained, make, loop))
        train(run, agent, trained, evaluate, schedule)


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


def _replay(config: Config, source: Trained, settings: agents.AgentConfig) -> dict[str, Tensor] | None:
    """The replay buffer to begin with, if it is not a new one."""
    if not config.keep_replay:
        return None
    if config.offline:
        return online.require_replay(source, config.source, None, {"decoder.context": config.decoder.context})
    return online.require_replay(source, config.source, config.loop.n_envs, settings.lengths)

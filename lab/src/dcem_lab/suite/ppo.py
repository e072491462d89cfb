"""The paper's phase 3: a trained controller, fine-tuned for its return by PPO through the planner."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from dcem_lab.runs import Run, require
from dcem_lab.suite.agents.finetune import Finetuner
from dcem_lab.suite.agents.finetune_config import FinetuneConfig
from dcem_lab.suite.agents.policy import Policy
from dcem_lab.suite.envs.dmc import ControlEnv
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.online import (
    FINETUNE_SELECTION_SEED,
    LoopConfig,
    evaluations,
    require_chunks,
    training_device,
)
from dcem_lab.suite.trained import SNAPSHOTS, load, load_from
from dcem_lab.training.loop import Schedule, train


@dataclass(frozen=True)
class PlannerChanges:
    """What to change in the source's planner.

    Attributes:
        samples, elites, iterations, sigma: as those of `PlannerConfig`; null for the source's own.
        tau: likewise; a source that plans over action sequences with the hard top-k (tau=0) needs one here,
            for gradients to pass.
    """

    samples: int | None = None
    elites: int | None = None
    iterations: int | None = None
    sigma: float | None = None
    tau: float | None = None

    def __post_init__(self) -> None:
        for name in ("samples", "elites", "iterations"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "null or at least 1")
        require(self.sigma is None or self.sigma > 0, "sigma", self.sigma, "null or positive")
        require(self.tau is None or self.tau >= 0, "tau", self.tau, "null or at least 0")

    def given(self) -> dict[str, Any]:
        """Those that are not null."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Config(FinetuneConfig, LoopConfig):
    """A controller to start from, how to fine-tune it, and how often to look at it.

    Attributes, beside those of the agent (`FinetuneConfig`) and of the loop
    (`LoopConfig`):
        source: the run folder of the controller, or the name of one that ships; `from=` on the command line.
        snapshot: the source's weights that were best at an evaluation, or the last.
        planner: changes to the source's planner, for training and evaluation alike.
        steps: PPO steps.
        n_envs: environments stepped and planned for at once, with an episode each in a PPO step.
        actions: taken in every environment in a PPO step; null for a whole episode.
        eval_every: PPO steps between evaluations, from before the first step to after the last, whose best
            weights are kept.
    """

    source: str = ""
    snapshot: str = "best"
    planner: PlannerChanges = field(default_factory=PlannerChanges)
    steps: int = 200
    n_envs: int = 10
    n_workers: int = 10
    actions: int | None = None
    eval_every: int = 10

    def __post_init__(self) -> None:
        FinetuneConfig.__post_init__(self)
        LoopConfig.__post_init__(self)
        self._at_least_one("steps")
        require(self.value_steps < self.steps, "value_steps", self.value_steps,
                f"below steps={self.steps}: until then only the value network learns")  # fmt: skip
        require(self.actions is None or self.actions >= 1, "actions", self.actions, "null or at least 1")
        require(self.snapshot in SNAPSHOTS, "snapshot", self.snapshot, " or ".join(SNAPSHOTS))


PRESETS: dict[str, dict[str, object]] = {
    "tiny": {
        "planner": PlannerChanges(samples=10, elites=3, iterations=2, tau=1.0),
        "steps": 4,
        "n_envs": 2,
        "n_workers": 0,
        "actions": 25,
        "minibatch": 25,
        "value_width": 16,
        "value_updates": 5,
        "value_steps": 1,
        "batch": 4,
        "length": 10,
        "eval_every": 2,
        "eval_episodes": 2,
        "device": "cpu",
    },
}


def check(config: Config) -> None:
    """The source must be there, and have the parts that are to be trained."""
    source = load_from(config.source, config.snapshot, **config.planner.given())
    Policy(source.model, source.decoder, source.planner).train_only(config.parts)
    with closing(source.environment()()) as env:
        actions, distance = _actions(config, env), source.model.config.distance
        if config.likelihood:
            require_chunks(env, config, config.replay_steps, {"length": config.length})
            allowed = f"from model.distance={distance} to below actions={actions}"
            require(distance <= config.length < actions, "length", config.length, allowed)
    transitions = config.n_envs * actions
    allowed = f"at most {transitions}, the transitions of a step"
    require(config.minibatch <= transitions, "minibatch", config.minibatch, allowed)


def run(config: Config, run: Run) -> None:
    """Fine-tune, evaluate at intervals, and leave the best and the last controller in the checkpoint."""
    device = training_device(config.device)
    trained = load(config.source, config.snapshot, **config.planner.given()).to(device)
    make = trained.environment()
    with closing(make()) as probe:
        actions, repeat = _actions(config, probe), probe.action_repeat
    schedule = Schedule(
        steps=config.steps,
        env_steps=config.n_envs * actions * repeat,
        evaluations={*range(0, config.steps, config.eval_every), config.steps},
        save_every=config.save_every,
        beforehand=True,
    )
    with (
        closing(ParallelEnv(make, config.n_envs, config.n_workers)) as envs,
        evaluations(trained, make, config, FINETUNE_SELECTION_SEED) as evaluate,
    ):
        agent = Finetuner(
            envs, trained.model, trained.decoder, trained.planner, config, actions, config.seed, device
        )
        train(run, agent, trained, evaluate, schedule)


def _actions(config: Config, env: ControlEnv) -> int:
    """Actions of an environment in a PPO step."""
    if config.actions is not None:
        return config.actions
    if env.episode_actions is None:
        raise ValueError(f"actions must be given for {env.name}, whose episodes have no time limit, got null")
    return env.episode_actions

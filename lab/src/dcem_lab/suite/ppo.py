"""The paper's phase 3: a trained controller, fine-tuned for its return by PPO through the planner."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from dcem_lab.runs import Run, require
from dcem_lab.runs.settings import Settings, setting
from dcem_lab.suite import online
from dcem_lab.suite.agents.finetune import Finetuner
from dcem_lab.suite.agents.finetune_config import FinetuneConfig
from dcem_lab.suite.agents.policy import Policy
from dcem_lab.suite.envs.dmc import ControlEnv, probe
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.trained import SNAPSHOTS, load, load_from
from dcem_lab.training.devices import DEVICES, training_device
from dcem_lab.training.loop import Schedule, train


@dataclass(frozen=True)
class PlannerChanges(Settings):
    """What to change in the source's planner.

    Attributes:
        samples, elites, iterations, sigma: as in phase 2; null for the source's settings.
        policy_plans: plans of the policy, at most as many as samples; null for the source's.
        tau: temperature; null for the source's. Must be set if the source plans over action sequences with
            the hard top-k (tau=0), so that gradients flow.
    """

    samples: int | None = setting(None, least=1)
    elites: int | None = setting(None, least=1)
    iterations: int | None = setting(None, least=1)
    sigma: float | None = setting(None, above=0)
    policy_plans: int | None = setting(None, least=0)
    tau: float | None = setting(None, least=0)

    def given(self) -> dict[str, Any]:
        """Those that are not null."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Phase 3: fine-tune a controller by PPO, with gradients through its planner.

    Attributes:
        seed: seed of all random numbers.
        device: cpu, cuda, or auto for cuda if available.
        source: run folder of the controller, or name of a pretrained one; `from=` on the command line.
        snapshot: which weights of the source: best in evaluations, or last.
        steps: PPO steps.
        actions: actions per environment in a PPO step; null for a whole episode.
        planner: changes to the source's planner, for training and evaluation alike.
        learning: PPO through the planner.
        loop: the loop around it, evaluated from before the first step to after the last.
    """

    seed: int = 0
    device: str = setting("auto", among=DEVICES)
    source: str = ""
    snapshot: str = setting("best", among=SNAPSHOTS)
    steps: int = setting(200, least=1)
    actions: int | None = setting(None, least=1)
    planner: PlannerChanges = PlannerChanges()
    learning: FinetuneConfig = FinetuneConfig()
    loop: online.LoopConfig = online.LoopConfig(n_envs=10, n_workers=10, eval_every=10)

    def __post_init__(self) -> None:
        super().__post_init__()
        only_values = self.learning.value_steps
        require(only_values < self.steps, "learning.value_steps", only_values,
                f"below steps={self.steps}: until then only the value network learns")  # fmt: skip


PRESETS: dict[str, dict[str, object]] = {
    "tiny": {
        "planner": PlannerChanges(samples=10, elites=3, iterations=2, tau=1.0),
        "steps": 4,
        "actions": 25,
        "learning": FinetuneConfig(
            minibatch=25, value_width=16, value_updates=5, value_steps=1, batch=4, length=10
        ),
        "loop": online.LoopConfig(n_envs=2, n_workers=0, eval_every=2, eval_episodes=2),
        "device": "cpu",
    },
}


def check(config: Config) -> None:
    """The source must be there, and have the parts that are to be trained."""
    source, learning = load_from(config.source, config.snapshot, **config.planner.given()), config.learning
    Policy(source.model, source.decoder, source.planner, value=source.value).train_only(learning.parts)
    env, n_envs = probe(source.environment()), config.loop.n_envs
    if learning.likelihood:
        online.require_chunks(env, n_envs, learning.replay_steps, {"length": learning.length})
    learning.check(n_envs, _actions(config, env), source.model.config.distance)


def run(config: Config, run: Run) -> None:
    """Fine-tune, evaluate at intervals, and leave the best and the last controller in the checkpoint."""
    device, loop = training_device(config.device), config.loop
    trained = load(config.source, config.snapshot, **config.planner.given()).to(device)
    make = trained.environment()
    env = probe(make)
    actions = _actions(config, env)
    schedule = Schedule(
        steps=config.steps,
        env_steps=loop.n_envs * actions * env.action_repeat,
        evaluations={*range(0, config.steps, loop.eval_every), config.steps},
        save_every=loop.save_every,
        beforehand=True,
    )
    with (
        closing(ParallelEnv(make, loop.n_envs, loop.n_workers)) as envs,
        online.evaluations(trained, make, loop, online.FINETUNE_SELECTION_SEED) as evaluate,
    ):
        agent = Finetuner(envs, trained, config.learning, actions, config.seed)
        train(run, agent, trained, evaluate, schedule)


def _actions(config: Config, env: ControlEnv) -> int:
    """Actions of an environment in a PPO step."""
    if config.actions is not None:
        return config.actions
    if env.episode_actions is None:
        raise ValueError(f"actions must be given for {env.name}, whose episodes have no time limit, got null")
    return env.episode_actions

"""An agent for any task: world model, critics and actor learn together, and plans use them all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dcem_lab.runs import require
from dcem_lab.runs.settings import resetting
from dcem_lab.suite import planet
from dcem_lab.suite.agents import AgentConfig, CollectingConfig, PlannerConfig, ValueConfig
from dcem_lab.suite.agents.planner import GUIDED
from dcem_lab.suite.envs.dmc import ControlEnv, probe
from dcem_lab.suite.online import StepLoopConfig, value_for
from dcem_lab.suite.planet import run
from dcem_lab.suite.rssm import RSSMConfig
from dcem_lab.suite.trained import load_from

__all__ = ["PRESETS", "Config", "check", "run"]


@dataclass(frozen=True, kw_only=True)
class Config(planet.Config):
    """Learn a world model, critics and an actor; plans end in the value that the critics estimate.

    Settings without a prefix are those of the run and of the world model's training.

    Attributes, in addition to those of `LearningConfig` and of phase 1:
        source: a run folder or the name of pretrained weights to continue from, with its replay buffer if it
            has one (otherwise seed episodes that it plans itself); `from=` on the command line. A run of
            phase 1 gets a new value.
        value: critics and actor, and their training.
    """

    wrap_angles: bool = True
    clip: float = resetting(planet.Config, "clip", 20.0)
    average: float = resetting(planet.Config, "average", 0.995)
    early_chunks: float = resetting(planet.Config, "early_chunks", 0.2)
    model: RSSMConfig = replace(planet.ENSEMBLE, distance=6)
    planner: PlannerConfig = GUIDED
    evaluation: PlannerConfig = GUIDED
    collecting: CollectingConfig = CollectingConfig(noise_from_zero=True)
    loop: StepLoopConfig = StepLoopConfig(env_steps=600_000, eval_every=50_000, eval_episodes=32)
    value: ValueConfig = ValueConfig(early_share=0.25)

    def agent_for(self, env: ControlEnv) -> AgentConfig:
        """The agent for an environment of the task, all but its world model."""
        value = value_for(self.value, env)
        return AgentConfig(self, self.collecting, self.planner, value=value)


_TINY_PLANNER = replace(
    GUIDED, samples=12, elites=3, iterations=2, horizon=3, policy_plans=4, dtype="float32"
)
_SUITE_PLANNER = replace(GUIDED, samples=64, elites=10, iterations=3, policy_plans=12)
_CPU_PLANNER = replace(_SUITE_PLANNER, dtype="bfloat16")
_GYM_PLANNER = replace(GUIDED, samples=48, elites=8, iterations=3, policy_plans=8, dtype="float32")

PRESETS: dict[str, dict[str, object]] = {
    "tiny": {
        **planet.PRESETS["tiny"],
        "model": replace(planet.ENSEMBLE, hidden=16, width=16, distance=4, members=2),
        "planner": _TINY_PLANNER,
        "evaluation": _TINY_PLANNER,
        "value": ValueConfig(critics=3, width=16, batch=16, updates_per_step=1.0, early_share=0.25),
    },
    # For Gymnasium's tasks of few dimensions, on a CPU.
    "gym": {
        **planet.PRESETS["gym"],
        "planner": _GYM_PLANNER,
        "evaluation": _GYM_PLANNER,
        "updates_per_step": 1.0,
        "value": ValueConfig(width=64, batch=128, updates_per_step=4.0, early_share=0.25),
    },
    # For the control suite without a GPU: more updates per transition than the default, but of smaller
    # networks on smaller batches, fewer trajectories per plan, and fewer random episodes at the beginning.
    "cpu": {
        "model": replace(planet.ENSEMBLE, hidden=128, width=128, distance=6),
        "planner": _CPU_PLANNER,
        "evaluation": _CPU_PLANNER,
        "batch": 32,
        "length": 25,
        "updates_per_step": 1.0,
        "value": ValueConfig(width=128, batch=256, updates_per_step=8.0, early_share=0.25),
        "loop": StepLoopConfig(
            env_steps=100_000, n_envs=4, n_workers=0, eval_every=50_000, eval_episodes=16, log_every=400
        ),
        "device": "cpu",
    },
    # Twice the updates of the model, which tasks with a long action repeat need.
    "best": {"updates_per_step": 2.0},
    # For many tasks side by side on one GPU. Updates per transition, batches and plans while collecting are
    # those of `cpu`; networks are larger, and there are 16 environments.
    "suite": {
        "planner": _SUITE_PLANNER,
        "batch": 32,
        "length": 25,
        "updates_per_step": 4.0,
        "value": ValueConfig(batch=256, updates_per_step=32.0, early_share=0.25),
        "loop": StepLoopConfig(env_steps=500_000, n_workers=2, eval_every=100_000, eval_episodes=16),
    },
}


def check(config: Config) -> None:
    """Check that the task exists, and that the source to continue from fits."""
    planet.check(config)
    theirs = load_from(config.source).value if config.source else None
    if theirs is None:
        return
    value = config.agent_for(probe(planet.environment(config))).value
    assert value is not None
    for name, ours in value.network.items():
        there = theirs.settings[name]
        require(ours == there, f"value.{name}", ours, f"{there}, as in {config.source}")

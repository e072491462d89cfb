"""Agents: a model, a planner and learners, in environments."""

from dcem_lab.suite.agents.build import AgentConfig, Beginning, build, build_offline
from dcem_lab.suite.agents.collect import CollectingConfig, Collector
from dcem_lab.suite.agents.controller import Controller, Episode
from dcem_lab.suite.agents.decoder_learner import DecoderConfig, DecoderLearner
from dcem_lab.suite.agents.model_learner import LearningConfig, ModelLearner
from dcem_lab.suite.agents.offline import Offline
from dcem_lab.suite.agents.plan_learner import PlanConfig, PlanLearner
from dcem_lab.suite.agents.planet import Planet
from dcem_lab.suite.agents.planner import Planner, PlannerConfig
from dcem_lab.suite.agents.value import Value
from dcem_lab.suite.agents.value_learner import ValueConfig, ValueLearner

__all__ = [
    "AgentConfig", "Beginning", "CollectingConfig", "Collector", "Controller", "DecoderConfig",
    "DecoderLearner", "Episode", "LearningConfig", "ModelLearner", "Offline", "PlanConfig", "PlanLearner",
    "Planet", "Planner", "PlannerConfig", "Value", "ValueConfig", "ValueLearner", "build", "build_offline",
]  # fmt: skip

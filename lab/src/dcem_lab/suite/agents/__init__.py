"""Agents: a model, a planner and a way to learn, at work in environments."""

from dcem_lab.suite.agents.collect import Collector
from dcem_lab.suite.agents.controller import Controller, Episode
from dcem_lab.suite.agents.decoder_learner import DecoderConfig, DecoderLearner
from dcem_lab.suite.agents.offline import Offline
from dcem_lab.suite.agents.planet import ModelLearner, OnlineConfig, Planet, PlanetConfig
from dcem_lab.suite.agents.planner import Planner, PlannerConfig

__all__ = [
    "Collector",
    "Controller",
    "DecoderConfig",
    "DecoderLearner",
    "Episode",
    "ModelLearner",
    "Offline",
    "OnlineConfig",
    "Planet",
    "PlanetConfig",
    "Planner",
    "PlannerConfig",
]

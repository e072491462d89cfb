"""Agents: a model, a planner and a way to learn, at work in environments."""

from dcem.agents.collect import Collector
from dcem.agents.controller import Controller, Episode
from dcem.agents.decoder_learner import DecoderConfig, DecoderLearner
from dcem.agents.offline import Offline
from dcem.agents.planet import Learner, OnlineConfig, Planet, PlanetConfig
from dcem.agents.planner import Planner, PlannerConfig

__all__ = [
    "Collector",
    "Controller",
    "DecoderConfig",
    "DecoderLearner",
    "Episode",
    "Learner",
    "Offline",
    "OnlineConfig",
    "Planet",
    "PlanetConfig",
    "Planner",
    "PlannerConfig",
]

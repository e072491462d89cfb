"""Agents: a model, a planner and a way to learn, at work in environments."""

from dcem.agents.collect import Collector
from dcem.agents.controller import Controller, Episode
from dcem.agents.planet import Learner, Planet, PlanetConfig
from dcem.agents.planner import Planner, PlannerConfig

__all__ = [
    "Collector",
    "Controller",
    "Episode",
    "Learner",
    "Planet",
    "PlanetConfig",
    "Planner",
    "PlannerConfig",
]

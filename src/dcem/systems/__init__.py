"""Differentiable systems with exact dynamics, to control and to test with."""

from dcem.systems.cartpole import Cartpole
from dcem.systems.pendulum import Pendulum

__all__ = ["Cartpole", "Pendulum"]

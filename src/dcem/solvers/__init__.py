"""Solvers: frozen records of settings, each with a first state, noise, one step and a result."""

from dcem.solvers.base import Record, Solver
from dcem.solvers.cmaes import CMAES
from dcem.solvers.dcem import DCEM
from dcem.solvers.gradient_descent import GradientDescent
from dcem.solvers.ipop import IPOP
from dcem.solvers.mppi import MPPI
from dcem.solvers.refine import Refine

__all__ = ["CMAES", "DCEM", "IPOP", "MPPI", "GradientDescent", "Record", "Refine", "Solver"]

"""Differentiable sampling-based optimisation for PyTorch."""

from importlib import metadata as _metadata

from dcem import backward, noise
from dcem._capture import capture
from dcem._learned import Fraction, PerIteration, Positive
from dcem._minimize import Solution, minimize
from dcem.argmin import Argmin
from dcem.control import MPC, Decoder, Plan, embedding_loss
from dcem.distributions import Distribution, FullGaussian, Gaussian
from dcem.solvers import DCEM, MPPI, GradientDescent, Record, Solver
from dcem.topk import lml

try:
    __version__ = _metadata.version("dcem")
except _metadata.PackageNotFoundError:  # a checkout that is not installed
    __version__ = "unknown"

__all__ = [
    "DCEM",
    "MPC",
    "MPPI",
    "Argmin",
    "Decoder",
    "Distribution",
    "Fraction",
    "FullGaussian",
    "Gaussian",
    "GradientDescent",
    "PerIteration",
    "Plan",
    "Positive",
    "Record",
    "Solution",
    "Solver",
    "backward",
    "capture",
    "embedding_loss",
    "lml",
    "minimize",
    "noise",
]

"""Differentiable sampling-based optimisation for PyTorch."""

from importlib import metadata as _metadata

from dcem import backward, noise
from dcem._capture import capture
from dcem._learned import Fraction, PerIteration, Positive
from dcem._minimize import Solution, minimize
from dcem.argmin import Argmin
from dcem.control import MPC, Decoder, Plan, embedding_loss
from dcem.distributions import Bernoulli, Categorical, Distribution, FullGaussian, Gaussian, Product
from dcem.solvers import CMAES, DCEM, IPOP, MPPI, GradientDescent, Record, Refine, Solver
from dcem.topk import lml

try:
    __version__ = _metadata.version("dcem")
except _metadata.PackageNotFoundError:  # a checkout that is not installed
    __version__ = "unknown"

__all__ = [
    "CMAES",
    "DCEM",
    "IPOP",
    "MPC",
    "MPPI",
    "Argmin",
    "Bernoulli",
    "Categorical",
    "Decoder",
    "Distribution",
    "Fraction",
    "FullGaussian",
    "Gaussian",
    "GradientDescent",
    "PerIteration",
    "Plan",
    "Positive",
    "Product",
    "Record",
    "Refine",
    "Solution",
    "Solver",
    "backward",
    "capture",
    "embedding_loss",
    "lml",
    "minimize",
    "noise",
]

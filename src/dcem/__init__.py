"""Differentiable sampling-based optimisation for PyTorch."""

from dcem import backward, noise
from dcem.distributions import FullGaussian, Gaussian
from dcem.minimize import Solution, minimize
from dcem.solvers import DCEM, MPPI, GradientDescent, Record
from dcem.topk import lml

__all__ = [
    "DCEM",
    "MPPI",
    "FullGaussian",
    "Gaussian",
    "GradientDescent",
    "Record",
    "Solution",
    "backward",
    "lml",
    "minimize",
    "noise",
]

"""Differentiable sampling-based optimisation for PyTorch."""

from dcem import backward, noise
from dcem._capture import capture
from dcem._minimize import Solution, minimize
from dcem.argmin import Argmin
from dcem.control import MPC, Decoder, Plan, embedding_loss
from dcem.distributions import FullGaussian, Gaussian
from dcem.solvers import DCEM, MPPI, GradientDescent, Record, Solver
from dcem.topk import lml

__all__ = [
    "DCEM",
    "MPC",
    "MPPI",
    "Argmin",
    "Decoder",
    "FullGaussian",
    "Gaussian",
    "GradientDescent",
    "Plan",
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

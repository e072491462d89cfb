"""Differentiable sampling-based optimisation for PyTorch."""

from dcem import backward, noise
from dcem.argmin import Argmin
from dcem.capture import capture
from dcem.control import MPC, Decoder, Plan, embedding_loss
from dcem.distributions import FullGaussian, Gaussian
from dcem.minimize import Solution, minimize
from dcem.solvers import DCEM, MPPI, GradientDescent, Record
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
    "backward",
    "capture",
    "embedding_loss",
    "lml",
    "minimize",
    "noise",
]

"""Sampling distributions: what the cross-entropy method fits to its elites."""

from dcem.distributions.base import Distribution
from dcem.distributions.full_gaussian import FullGaussian
from dcem.distributions.gaussian import Gaussian

__all__ = ["Distribution", "FullGaussian", "Gaussian"]

"""Sampling distributions: what the cross-entropy method fits to its elites."""

from dcem.distributions.base import Distribution
from dcem.distributions.discrete import Bernoulli, Categorical
from dcem.distributions.full_gaussian import FullGaussian
from dcem.distributions.gaussian import Gaussian
from dcem.distributions.product import Product

__all__ = ["Bernoulli", "Categorical", "Distribution", "FullGaussian", "Gaussian", "Product"]

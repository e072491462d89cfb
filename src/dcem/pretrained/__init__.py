"""Weights that ship with the package."""

from dcem.pretrained.hub import PretrainedError, available, load, save

__all__ = ["PretrainedError", "available", "load", "save"]

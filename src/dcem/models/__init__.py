"""Networks and learned models."""

from dcem.models.normalize import Normalizer
from dcem.models.overshoot import multistep_loss
from dcem.models.rssm import RSSM, RSSMConfig

__all__ = ["RSSM", "Normalizer", "RSSMConfig", "multistep_loss"]

"""Networks and learned models."""

from dcem_lab.suite.rssm.model import RSSM, RSSMConfig
from dcem_lab.suite.rssm.normalize import Normalizer, RewardScale
from dcem_lab.suite.rssm.overshoot import multistep_loss

__all__ = ["RSSM", "Normalizer", "RSSMConfig", "RewardScale", "multistep_loss"]

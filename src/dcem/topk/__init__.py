"""Soft and hard top-k: which of these entries are the largest?"""

from dcem.topk.hard import hard_topk
from dcem.topk.lml import lml

__all__ = ["hard_topk", "lml"]

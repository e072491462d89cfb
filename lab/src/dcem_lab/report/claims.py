"""A number of the paper beside ours, and the verdict on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dcem_lab.report.statistics import Interval, interval, log_interval

_SIGNS = {"good": "✓", "even": "≈", "bad": "✗", "none": "·"}
WIDE = 0.5  # an interval that reaches further than this part of the mean says little


class Verdict(NamedTuple):
    words: str
    tone: str  # good, even, bad or none

    @property
    def sign(self) -> str:
        return _SIGNS[self.tone]


NOT_RUN = Verdict("not run yet", "none")
NOT_REPORTED = Verdict("the paper has none", "none")


@dataclass(frozen=True)
class Claim:
    """A number of the paper, and ours: of `subject`, which `what` narrows down, the `measure`."""

    subject: str
    what: str
    measure: str
    paper: str
    ours: str = ""
    seeds: str = ""
    interval: str = ""
    verdict: Verdict = NOT_RUN

    @property
    def name(self) -> str:
        return f"{self.subject}, {self.what}: {self.measure}"


def judge(ours: np.ndarray, paper: float, lower_is_better: bool = False, log: bool = False) -> Verdict:
    """Where the paper's number lies beside our 95% interval over seeds (S,).

    >>> judge(np.array([1.0, 1.1, 1.2]), 1.15).words
    'agrees'
    >>> judge(np.array([1.0, 1.1, 1.2]), 0.5).words
    'better'
    """
    found = (log_interval if log else interval)(ours)
    if len(ours) == 1:
        better = (found.mean <= paper) if lower_is_better else (found.mean >= paper)
        return Verdict(f"{'better' if better else 'worse'}, one seed", "even")
    reach = np.log(found.high / found.mean) if log else (found.high - found.mean) / abs(found.mean)
    if found.holds(paper) and reach > WIDE:
        return Verdict("agrees, but wide", "even")
    return beside(found, paper, lower_is_better)


def beside(ours: Interval, paper: float, lower_is_better: bool = False) -> Verdict:
    """
    >>> beside(Interval(700, 690, 710), 701).words
    'agrees'
    """
    if ours.holds(paper):
        return Verdict("agrees", "good")
    better = ours.mean <= paper if lower_is_better else ours.mean >= paper
    return Verdict("better", "good") if better else Verdict("worse", "bad")

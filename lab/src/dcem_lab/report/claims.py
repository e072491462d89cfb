"""A number of the paper, ours, and a verdict, which says if the returns are bimodal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dcem_lab.report.statistics import LEAST, Interval, failed, interval, log_interval, two_humps

_SIGNS = {"good": "✓", "even": "≈", "bad": "✗", "none": "·"}
WIDE = 0.5  # an interval that extends further than this fraction of the mean says little
RULE = (
    "A number agrees if the paper's lies within our 95% interval. It agrees “but wide” if that interval "
    "extends by more than half of our value. A median of returns can hide failures. So the verdict also says "
    "if the returns of a controller or its other seeds are bimodal: the episodes form two groups of at least "
    f"{LEAST:.0%} each, with fewer than half as many episodes between the groups as around either. And it "
    f"says if at least {LEAST:.0%} of the episodes fail: they return less than half of the median. Such a "
    "verdict does not count as agreement."
)


class Verdict(NamedTuple):
    words: str
    tone: str  # good, even, bad or none
    note: str = ""

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
    """Where the paper's number lies relative to our 95% interval over seeds (S,)."""
    found = (log_interval if log else interval)(ours)
    if len(ours) == 1:
        better = (found.mean <= paper) if lower_is_better else (found.mean >= paper)
        return Verdict(f"{'better' if better else 'worse'}, one seed", "even")
    reach = np.log(found.high / found.mean) if log else (found.high - found.mean) / abs(found.mean)
    if found.holds(paper) and reach > WIDE:
        return Verdict("agrees, but wide", "even")
    return beside(found, paper, lower_is_better)


def beside(ours: Interval, paper: float, lower_is_better: bool = False) -> Verdict:
    """Where it lies relative to an interval that is known."""
    if ours.holds(paper):
        return Verdict("agrees", "good")
    better = ours.mean <= paper if lower_is_better else ours.mean >= paper
    return Verdict("better", "good") if better else Verdict("worse", "bad")


def qualified(verdict: Verdict, returns: np.ndarray, *other_seeds: np.ndarray) -> Verdict:
    """A verdict on the median of returns (S,), with a caveat if any seed is bimodal or has failures.

    >>> returns = np.array([100.0, 110.0] * 10 + [900.0, 910.0] * 20)
    >>> qualified(Verdict("better", "good"), returns)
    Verdict(words='better, but bimodal', tone='even', note='20 around 105, 40 around 905')
    """
    (name, note), *others = map(_caveat, (returns, *other_seeds))
    if not name:
        notes = [f"another seed: {said}" for _, said in others if said]
        name, note = "not in every seed" * bool(notes), "; ".join(notes)
    if not name:
        return verdict
    return Verdict(f"{verdict.words}, but {name}", "bad" if verdict.tone == "bad" else "even", note)


def _caveat(returns: np.ndarray) -> tuple[str, str]:
    """What their median hides, with numbers; empty if it hides nothing."""
    if (humps := two_humps(returns)) is not None:
        return "bimodal", str(humps)
    count = int(failed(returns).sum())
    if count < LEAST * len(returns):
        return "", ""
    return "failures", f"{count} of {len(returns)} below half of the median"

"""Tables, and the verdict on a number beside the paper's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dcem_lab.report.html import Child, Html, element
from dcem_lab.report.style import interval, log_interval

_SIGNS = {"good": "✓", "even": "≈", "bad": "✗", "none": "·"}
WIDE = 0.5  # an interval that reaches further than this part of the mean says little


class Verdict(NamedTuple):
    words: str
    tone: str  # good, even, bad or none

    def chip(self) -> Html:
        sign = element("span", _SIGNS[self.tone], aria_hidden="true")
        return element("span", sign, " ", self.words, class_=f"chip {self.tone}")


NOT_RUN = Verdict("not run yet", "none")
NOT_REPORTED = Verdict("the paper has none", "none")


@dataclass(frozen=True)
class Claim:
    """A number of the paper, and ours: of `subject`, which `what` narrows down, the `measure`."""

    subject: str
    what: str
    measure: str
    paper: str
    ours: str
    seeds: str
    interval: str
    verdict: Verdict

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
    mean, low, high = (log_interval if log else interval)(ours)
    better = mean <= paper if lower_is_better else mean >= paper
    if len(ours) == 1:
        return Verdict(f"{'better' if better else 'worse'}, one seed", "even")
    if not low <= paper <= high:
        return Verdict("better", "good") if better else Verdict("worse", "bad")
    reach = np.log(high / mean) if log else (high - mean) / abs(mean)
    return Verdict("agrees, but wide", "even") if reach > WIDE else Verdict("agrees", "good")


def claims_table(claims: Sequence[Claim], whole: bool = False) -> Html:
    """`whole` spells out the subject and the measure in every row."""
    rows: list[dict[str, Child]] = [
        {
            "number" if whole else claim.measure: claim.name if whole else claim.what,
            "paper": claim.paper,
            "ours": element("strong", _whole(claim.ours)) if claim.ours else None,
            "seeds": claim.seeds,
            "95% interval": claim.interval,
            "verdict": claim.verdict.chip(),
        }
        for claim in claims
    ]
    return table(rows)


def table(rows: Sequence[Mapping[str, Child]], caption: str | None = None) -> Html:
    """Rows with the same keys. On a narrow screen every row becomes a card."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in names)))
    body = []
    for row in rows:
        first, *others = names
        cells = [element("th", row.get(first), scope="row")]
        cells += [element("td", _cell(row.get(name)), data_label=name) for name in others]
        body.append(element("tr", *cells))
    inner = element("table", element("caption", caption) if caption else None, head, element("tbody", *body))
    return element("div", inner, class_="table")


def _cell(value: Child) -> Child:
    """One element at most, because a card sets the label and the value apart."""
    if not value:
        return None
    if isinstance(value, str) and not isinstance(value, Html):
        value = _whole(value)
    return element("span", value)


def _whole(text: str) -> list[Child]:
    """An interval and a number with an exponent are not broken over lines."""
    parts = re.split(r"(\[[^\]]*\]|[\d.]+e[-+]\d+)", text)
    return [element("span", part, class_="whole") if i % 2 else part for i, part in enumerate(parts)]


def details(summary: str, *children: Child) -> Html:
    return element("details", element("summary", summary), *children)


def scientific(value: float | np.ndarray) -> str:
    """
    >>> scientific(0.00031)
    '3.1e-4'
    """
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e+")


def number(value: float) -> str:
    """Three digits.

    >>> number(1234.5), number(0.01234)
    ('1,234', '0.0123')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"

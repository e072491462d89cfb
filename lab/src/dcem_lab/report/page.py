"""The report: one HTML page, built only from result files, that needs nothing but a browser.

It does not know the experiments: the caller passes the sections.
"""

from __future__ import annotations

from collections.abc import Sequence

from dcem_lab.report.claims import RULE
from dcem_lab.report.sources import Section
from dcem_lab.report.templates import render


def build(sections: Sequence[Section]) -> str:
    """The page as text: the sections' openings, the verdicts on all claims, and the sections, folded."""
    claims = [claim for section in sections for claim in section.claims]
    return str(render("report/page.html", sections=sections, claims=claims, rule=RULE))

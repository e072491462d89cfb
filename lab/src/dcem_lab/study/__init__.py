"""The study as a whole: the sections of its page, and the tables of README and docs.

A section is a module with `section(sources) -> Section`; to add one, write it and name it in `SECTIONS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dcem_lab.cartpole import section as cartpole
from dcem_lab.regression import section as regression
from dcem_lab.report.claims import RULE
from dcem_lab.report.sources import Section, Sources
from dcem_lab.report.templates import render
from dcem_lab.study import intro, limits, peers, quick, speed
from dcem_lab.suite import section as suite
from dcem_lab.suite import value_section as value

SECTIONS = (intro, quick, regression, cartpole, suite, value, speed, peers)


def write_page(out: Path, sources: Sources) -> Path:
    """Write the page and return its path."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(build_page(sources), encoding="utf-8")
    return out


def build_page(sources: Sources) -> str:
    """The page as text. The same files make the same page."""
    found = [section for module in SECTIONS if (section := module.section(sources)) is not None]
    return page_of([*found, limits.section(sources, found)])


def page_of(sections: Sequence[Section]) -> str:
    """The sections' openings, the verdicts on all claims, and the sections, folded."""
    claims = [claim for section in sections for claim in section.claims]
    return str(render("report/page.html", sections=sections, claims=claims, rule=RULE))

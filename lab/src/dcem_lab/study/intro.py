"""What DCEM is: two sentences on top of the page; in full, with a picture and a panel to play with, below."""

from __future__ import annotations

from dcem_lab import paper
from dcem_lab.report.sources import Section, Sources
from dcem_lab.report.templates import render


def section(sources: Sources) -> Section:
    return Section(
        "what",
        "What DCEM is",
        render("study/intro.html"),
        opening=render("study/lead.html", paper=paper),
        about="How it works, and a panel to try it.",
    )

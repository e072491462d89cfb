"""The opening: what DCEM is, in a paragraph, a picture, and a panel to play with."""

from __future__ import annotations

from dcem_lab import paper
from dcem_lab.report.sources import Section, Sources
from dcem_lab.report.templates import render


def section(sources: Sources) -> Section:
    return Section("what", "What DCEM is", render("study/intro.html", paper=paper))

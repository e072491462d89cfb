"""The section on what did not work, and on where this differs from the paper."""

from __future__ import annotations

from collections.abc import Sequence

from dcem_lab.report.markdown import by_heading
from dcem_lab.report.markdown import render as markdown
from dcem_lab.report.sources import Section, Sources
from dcem_lab.report.templates import render

DEVIATIONS = "deviations.md"


def section(sources: Sources, others: Sequence[Section]) -> Section:
    """What the other sections say did not work, and the page of deviations."""
    first, deviations = by_heading(sources.docs / DEVIATIONS)
    body = render(
        "study/limits.html",
        failures=[failure for other in others for failure in other.failures],
        first=markdown(first or f"They are listed in lab/docs/{DEVIATIONS} of a checkout."),
        deviations={heading: markdown(text) for heading, text in deviations.items()},
    )
    about = "Failures found in the sections above, and every difference from the paper."
    return Section("limits", "What did not work", body, about=about)

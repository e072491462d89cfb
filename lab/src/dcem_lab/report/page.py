"""The report: one HTML page, built from files of results alone, that needs nothing but a browser.

It knows no experiment: whoever builds a page hands it the sections.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from dcem_lab.report.html import Html, data_script, element, join, paragraph
from dcem_lab.report.sources import Section
from dcem_lab.report.tables import claims_table

SCRIPTS = ("theme.js", "live.js", "explorers.js")
TITLE = "dcem: an argmin you can train through"


def build(sections: Sequence[Section]) -> str:
    """The page as text; the first section opens it, a summary of all claims follows."""
    opening, *others = sections
    links = [("summary", "In short"), *((section.id, section.title) for section in sections)]
    body = join(
        element("a", "Skip to the content", href="#main", class_="skip"),
        _header(),
        _navigation(links),
        element("main", _section(opening), _summary(sections), *map(_section, others), id="main"),
        element(
            "footer", paragraph("Built by ", element("code", "dcem report"), " from files of results alone.")
        ),
        *(data_script(name, values) for section in sections for name, values in section.data.items()),
        *(element("script", Html(_file(name))) for name in SCRIPTS),
    )
    head = join(
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", TITLE),
        Html('<link rel="icon" href="data:,">'),  # or the browser asks the network for one
        element("style", Html(_file("style.css"))),
    )
    return f"<!doctype html>\n{element('html', element('head', head), element('body', body), lang='en')}\n"


def _header() -> Html:
    return element(
        "header",
        element(
            "div",
            element("h1", "dcem"),
            paragraph("An argmin you can train through, and a reproduction of the paper behind it"),
        ),
        element("button", "dark", type="button", id="theme", aria_label="Switch between light and dark"),
    )


def _navigation(links: list[tuple[str, str]]) -> Html:
    ordered = [links[1], links[0], *links[2:]]
    items = (element("li", element("a", title, href=f"#{id_}")) for id_, title in ordered)
    return element("nav", element("ul", *items), aria_label="Sections")


def _summary(sections: Sequence[Section]) -> Html:
    claims = [claim for section in sections for claim in section.claims]
    reached = sum(claim.verdict.tone == "good" for claim in claims)
    done = sum(claim.verdict.tone != "none" for claim in claims)
    return element(
        "section",
        element("h2", "In short"),
        paragraph(
            f"Of {len(claims)} numbers of the paper, {done} have been measured here, and {reached} of these "
            "agree or are better. A number agrees when it lies within our 95% interval over seeds; “but "
            "wide” when that interval reaches further than half of the value.",
        ),
        claims_table(claims, whole=True),
        id="summary",
    )


def _section(section: Section) -> Html:
    return element("section", element("h2", section.title), section.body, id=section.id)


def _file(name: str) -> str:
    return files("dcem_lab.report").joinpath(name).read_text()

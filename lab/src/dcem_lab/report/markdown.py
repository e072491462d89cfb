"""As much Markdown as our own pages use: paragraphs, tables, emphasis, code, links, a little mathematics."""

from __future__ import annotations

import html
import re
from pathlib import Path

from dcem_lab.report.html import Html, element, join
from dcem_lab.report.tables import table

_SYMBOLS = {r"\Pi": "Π", r"\tau": "τ", r"\mu": "μ", r"\sigma": "σ", r"\theta": "θ", r"\hat": ""}
_PATTERN = re.compile(
    r"`(?P<code>[^`]+)`|\$(?P<math>[^$]+)\$|\[(?P<text>[^\]]+)\]\((?P<address>[^)]+)\)"
    r"|\*\*(?P<strong>[^*]+)\*\*|\*(?P<emphasis>[^*]+)\*"
)


def by_heading(path: Path) -> tuple[str, dict[str, str]]:
    """Of a page: what stands below its title, and what below each of its headings."""
    title, *below = path.read_text().split("\n## ")
    pairs = (part.partition("\n") for part in below)
    return title.partition("\n")[2], {heading: text for heading, _, text in pairs}


def render(text: str) -> Html:
    """Blocks that are separated by empty lines."""
    return join(*(_block(block.strip()) for block in re.split(r"\n\s*\n", text) if block.strip()))


def _block(block: str) -> Html:
    lines = block.splitlines()
    if lines[0].startswith("|"):
        names, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines)
        return table([dict(zip(names, map(inline, row), strict=True)) for row in rows])
    return element("p", inline(" ".join(lines)))


def inline(text: str) -> Html:
    """
    >>> inline("a *b* and `c < d`")
    'a <em>b</em> and <code>c &lt; d</code>'
    """
    parts, end = [], 0
    for match in _PATTERN.finditer(text):
        parts += [Html(html.escape(text[end : match.start()], quote=False)), _span(match)]
        end = match.end()
    return join(*parts, text[end:])


def _span(match: re.Match[str]) -> Html:
    found = match.groupdict()
    if found["code"]:
        return element("code", found["code"])
    if found["math"]:
        return element("i", Html(_mathematics(found["math"])), class_="math")
    if found["text"]:
        # Links into the documentation lead nowhere from a page that stands alone.
        outside = found["address"].startswith("https://")
        return element("a", found["text"], href=found["address"]) if outside else inline(found["text"])
    return element("strong", found["strong"]) if found["strong"] else element("em", found["emphasis"])


def _mathematics(text: str) -> str:
    text = html.escape(text, quote=False)
    for name, symbol in _SYMBOLS.items():
        text = text.replace(name, symbol)
    text = re.sub(r"_\{([^}]+)\}|_(\w)", lambda m: f"<sub>{m[1] or m[2]}</sub>", text)
    return re.sub(r"\^\{([^}]+)\}|\^(\w)", lambda m: f"<sup>{m[1] or m[2]}</sup>", text)

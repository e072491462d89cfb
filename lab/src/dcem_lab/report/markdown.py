"""Our own Markdown pages as parts of the report, with its table style and simple mathematics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

from dcem_lab.report.templates import part

_SYMBOLS = {r"\Pi": "Π", r"\tau": "τ", r"\mu": "μ", r"\sigma": "σ", r"\theta": "θ", r"\hat": ""}


def by_heading(path: Path) -> tuple[str, dict[str, str]]:
    """The text below the title of a page, and below each of its headings; nothing where there is no page."""
    if not path.exists():
        return "", {}
    title, *below = path.read_text(encoding="utf-8").split("\n## ")
    pairs = (part.partition("\n") for part in below)
    return title.partition("\n")[2], {heading: text for heading, _, text in pairs}


def render(text: str) -> Markup:
    """
    >>> render("a *b* and `c < d`")
    Markup('<p>a <em>b</em> and <code>c &lt; d</code></p>\\n')
    """
    tokens = _parser.parse(text)
    for token in tokens:
        token.children = _without_inner_links(token.children or [])
    while any(token.type == "table_open" for token in tokens):
        tokens = _with_first_table(tokens)
    return _rendered(tokens)


def _rendered(tokens: Sequence[Token]) -> Markup:
    return Markup(_parser.renderer.render(tokens, _parser.options, {}))


def _with_first_table(tokens: Sequence[Token]) -> list[Token]:
    """Its tokens replaced by one, a table like the others of the report."""
    kinds = [token.type for token in tokens]
    start, end = kinds.index("table_open"), kinds.index("table_close") + 1
    cells = [_rendered([token]) for token in tokens[start:end] if token.type == "inline"]
    width = kinds[start:end].count("th_open")
    names, *rows = (cells[i : i + width] for i in range(0, len(cells), width))
    table = part("table", [dict(zip(names, row, strict=True)) for row in rows])
    return [*tokens[:start], Token("html_block", "", 0, content=table), *tokens[end:]]


def _without_inner_links(tokens: Sequence[Token]) -> list[Token]:
    """Remove links into the documentation, which do not work from a standalone page."""
    kept, inside = [], False
    for token in tokens:
        if token.type == "link_open":
            inside = not str(token.attrs["href"]).startswith("https://")
        if not (inside and token.type in ("link_open", "link_close")):
            kept.append(token)
    return kept


def _mathematics(state: StateInline, silent: bool) -> bool:
    """$…$: letters, subscripts and superscripts."""
    end = state.src.find("$", state.pos + 1)
    if state.src[state.pos] != "$" or end < 0:
        return False
    if not silent:
        state.push("math", "i", 0).content = state.src[state.pos + 1 : end]
    state.pos = end + 1
    return True


def _show_math(
    self: RendererHTML, tokens: Sequence[Token], i: int, options: OptionsDict, env: EnvType
) -> str:
    text = str(escape(tokens[i].content))
    for name, symbol in _SYMBOLS.items():
        text = text.replace(name, symbol)
    text = re.sub(r"_\{([^}]+)\}|_(\w)", lambda m: f"<sub>{m[1] or m[2]}</sub>", text)
    text = re.sub(r"\^\{([^}]+)\}|\^(\w)", lambda m: f"<sup>{m[1] or m[2]}</sup>", text)
    return f'<i class="math">{text}</i>'


_parser = MarkdownIt("commonmark", {"html": False}).enable("table")
_parser.inline.ruler.before("escape", "math", _mathematics)
_parser.add_render_rule("math", _show_math)

"""Our own Markdown pages as parts of the report, with its table style and simple mathematics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

_SYMBOLS = {r"\Pi": "Π", r"\tau": "τ", r"\mu": "μ", r"\sigma": "σ", r"\theta": "θ", r"\hat": ""}


def by_heading(path: Path) -> tuple[str, dict[str, str]]:
    """The text below the title of a page, and below each of its headings."""
    title, *below = path.read_text(encoding="utf-8").split("\n## ")
    pairs = (part.partition("\n") for part in below)
    return title.partition("\n")[2], {heading: text for heading, _, text in pairs}


def render(text: str) -> Markup:
    """
    >>> render("a *b* and `c < d`")
    Markup('<p>a <em>b</em> and <code>c &lt; d</code></p>\\n')
    """
    tokens = _parser.parse(text)
    _prepare_tables(tokens)
    for token in tokens:
        token.children = _without_inner_links(token.children or [])
    return Markup(_parser.renderer.render(tokens, _parser.options, {}))


def _prepare_tables(tokens: Sequence[Token]) -> None:
    """Mark the first cell of a row as its title and label the others, since a row may be shown as a card."""
    names: list[str] = []
    column = 0
    for token, following in pairwise(tokens):
        if token.type == "table_open":
            names = []
        elif token.type == "tr_open":
            column = 0
        elif token.type == "th_open":
            names.append(following.content)
            token.attrSet("scope", "col")
        elif token.type == "td_open":
            token.attrSet("data-label", names[column])
            column += 1
    rows = [i for i, token in enumerate(tokens) if token.type == "tr_open"]
    for i in rows:
        if tokens[i + 1].type == "td_open":
            tokens[i + 1].tag = tokens[i + 3].tag = "th"
            tokens[i + 1].attrs = {"scope": "row"}


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


def _show_table(
    self: RendererHTML, tokens: Sequence[Token], i: int, options: OptionsDict, env: EnvType
) -> str:
    """Put it in a scrolling box; a cell has at most one element, because a card separates label and value."""
    tag = self.renderToken(tokens, i, options, env)
    token = tokens[i]
    if token.tag == "table":
        return f'<div class="table">{tag}' if token.nesting > 0 else f"{tag}</div>"
    if token.tag == "td" and tokens[i + token.nesting].content:
        return f"{tag}<span>" if token.nesting > 0 else f"</span>{tag}"
    return tag


_parser = MarkdownIt("commonmark", {"html": False}).enable("table")
_parser.inline.ruler.before("escape", "math", _mathematics)
_parser.add_render_rule("math", _show_math)
for _kind in ("table_open", "table_close", "td_open", "td_close"):
    _parser.add_render_rule(_kind, _show_table)

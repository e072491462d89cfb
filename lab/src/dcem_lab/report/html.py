"""HTML as nested function calls; text is escaped unless it is `Html` already."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any, TypeAlias

_VOID = {"br", "circle", "image", "img", "input", "line", "meta", "path", "rect"}


class Html(str):
    """Text that is HTML already."""


Child: TypeAlias = "str | Iterable[Child] | None"


def element(tag: str, /, *children: Child, **attributes: str | float | bool | None) -> Html:
    """An element. A trailing underscore is dropped from attribute names, others become hyphens.

    >>> element("p", "a < b", element("br"), class_="note", data_k=3)
    '<p class="note" data-k="3">a &lt; b<br></p>'
    """
    words = [tag]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{html.escape(_short(value))}"')
    opened = " ".join(words)
    inner = join(*children)
    if tag in _VOID and not inner:
        return Html(f"<{opened}>" if tag in ("br", "img", "input", "meta") else f"<{opened}/>")
    return Html(f"<{opened}>{inner}</{tag}>")


def join(*children: Child) -> Html:
    """Children one after the other, escaped where they are plain text."""
    parts = []
    for child in children:
        if isinstance(child, Html):
            parts.append(str(child))
        elif isinstance(child, str):
            parts.append(html.escape(child, quote=False))
        elif child is not None:
            parts.append(join(*child))
    return Html("".join(parts))


def code(text: str) -> Html:
    return element("code", text)


def paragraph(*children: Child, class_: str | None = None) -> Html:
    return element("p", *children, class_=class_)


def command(text: str) -> Html:
    """A command line to copy."""
    return element("pre", element("code", text), class_="command", tabindex="0")


def data_script(name: str, values: dict[str, Any]) -> Html:
    """JSON that the page's scripts read; nothing in it can close the element."""
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    safe = text.replace("</", "<\\/")
    return Html(f'<script type="application/json" id="{name}">{safe}</script>')


def _short(value: str | float) -> str:
    """Numbers with as many digits as a drawing needs."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)

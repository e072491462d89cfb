"""HTML from templates, stored next to the code that fills them; anything that is not markup is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dcem_lab.report import formats


def render(template: str, /, **values: Any) -> Markup:
    """A template, by its path in this package: `render("report/page.html", sections=…)`."""
    return Markup(_environment().get_template(template).render(values))


def part(name: str, /, *arguments: Any, of: str = "report/parts.html") -> Markup:
    """A macro of a template, called.

    >>> part("not_run", "a < b").count("<code>a &lt; b</code>")
    1
    """
    return Markup(getattr(_environment().get_template(of).module, name)(*arguments))


def code(text: str) -> Markup:
    return Markup("<code>{}</code>").format(text)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("dcem_lab", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "content": _content,
        "columns": _columns,
        "whole": _whole,
        "px": _pixels,
        "duration": formats.duration,
        "machine": formats.machine_of,
        "command": formats.public_command,
    }
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
    return made


def _content(path: str) -> Markup:
    """Of a stylesheet or a script of this package."""
    return Markup(files("dcem_lab").joinpath(path).read_text(encoding="utf-8"))


def _columns(rows: Iterable[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _whole(text: object) -> Markup:
    """Keep intervals and numbers with an exponent on one line."""
    if isinstance(text, Markup):
        return text
    parts = re.split(r"(\[[^\]]*\]|[\d.]+e[-+]\d+)", str(text))
    unbroken = Markup('<span class="whole">{}</span>')
    return Markup("").join(unbroken.format(part) if i % 2 else part for i, part in enumerate(parts))


def _pixels(value: float) -> str:
    """Format with the digits that a drawing needs."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)

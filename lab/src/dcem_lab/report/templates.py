"""HTML from templates, stored next to the code that fills them; anything that is not markup is escaped."""

from __future__ import annotations

import re
from functools import cache
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
        "whole": _whole,
        "px": "{:.5g}".format,  # the digits that a drawing needs
        "duration": formats.duration,
        "machine": formats.machine_of,
        "command": formats.public_command,
    }
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
    return made


def _whole(text: object) -> Markup:
    """Keep intervals and numbers with an exponent on one line."""
    if isinstance(text, Markup):
        return text
    parts = re.split(r"(\[[^\]]*\]|[\d.]+e[-+]\d+)", str(text))
    unbroken = Markup('<span class="whole">{}</span>')
    return Markup("").join(unbroken.format(part) if i % 2 else part for i, part in enumerate(parts))

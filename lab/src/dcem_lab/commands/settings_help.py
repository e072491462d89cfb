"""The settings of an experiment as help: defaults, types, what each is for, and what the presets change."""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

from dcem_lab.runs.config import flatten, to_json

WIDTH = 110
_INDENT = 30
# `samples: N, candidates an iteration.` or `batch, length: chunks in an update, ...`
_ENTRY = re.compile(r"(\s*)([a-z]\w*(?:, [a-z]\w*)*): (.+)")


def settings_help(name: str, config_type: Any, types: dict[str, str], presets: dict[str, Any]) -> str:
    """Everything about the settings of the experiment `name`; `types` says what each one takes."""
    defaults, about = flatten(config_type()), dict(descriptions(config_type))
    lines = [f"\nsettings of {name}, with their defaults:"]
    for key, value in defaults.items():
        head = f"  {f'{key}={as_typed(value)}':{_INDENT}}  ({types[key]})"
        lines += textwrap.wrap(
            f"{head} {about.get(key, '')}".rstrip(),
            WIDTH,
            subsequent_indent=" " * (_INDENT + 4),
            drop_whitespace=True,
            break_on_hyphens=False,
        )
    lines += ["", _summary(config_type), "", "presets:"]
    for preset, changes in presets.items():
        lines += _wrapped(f"  preset={preset}: ", ", ".join(_changed(config_type(), changes)))
    return "\n".join(lines) + "\n"


def as_typed(value: Any) -> str:
    """A value as one would write it on the command line."""
    plain = to_json(value)
    return plain if isinstance(plain, str) else json.dumps(plain, separators=(",", ":"))


def descriptions(config_type: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names of the fields, and what docstrings say about them, those of base classes included."""
    for base in reversed(config_type.__mro__):
        for names, text in _entries(base.__dict__.get("__doc__") or ""):
            yield from ((f"{prefix}{name}", text) for name in names)
    hints = typing.get_type_hints(config_type)
    for field in dataclasses.fields(config_type):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from descriptions(hints[field.name], f"{prefix}{field.name}.")


def _entries(doc: str) -> Iterator[tuple[list[str], str]]:
    """Names and text of every entry; lines that are further in belong to the entry above them."""
    names: list[str] = []
    text, depth = "", 0
    for line in doc.splitlines():
        match = _ENTRY.fullmatch(line)
        indent = len(line) - len(line.lstrip())
        if names and line.strip() and indent > depth:
            text += " " + line.strip()
            continue
        if names:
            yield names, text
        names = match[2].split(", ") if match else []
        text, depth = (match[3], indent) if match else ("", 0)
    if names:
        yield names, text


def _summary(config_type: Any) -> str:
    """The docstring up to its list of attributes."""
    doc = textwrap.dedent(f"{' ' * 4}{config_type.__doc__ or ''}")
    kept = []
    for line in doc.splitlines():
        if line.startswith("Attributes") or _ENTRY.fullmatch(line):
            break
        kept.append(line)
    return "\n".join(kept).strip()


def _changed(base: Any, changes: dict[str, Any]) -> Iterator[str]:
    before = flatten(base)
    for key, value in flatten(dataclasses.replace(base, **changes)).items():
        if value != before[key]:
            yield f"{key}={as_typed(value)}"


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(head + text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)

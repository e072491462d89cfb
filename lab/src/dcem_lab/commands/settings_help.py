"""The settings of an experiment as help: defaults, types, ranges, what each is for, what presets change."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

from dcem_lab.commands.values import type_text
from dcem_lab.runs.config import changed, flatten, to_json
from dcem_lab.runs.settings import Known, known_settings

WIDTH = 110
_INDENT = 30
# `samples: N, samples per iteration.` or `batch, length: chunks per update, ...`, with the lines that are
# further in below it.
_ENTRY = re.compile(r"^( *)([a-z]\w*(?:, [a-z]\w*)*): (.+(?:\n\1 +\S.*)*)", re.MULTILINE)


def settings_help(name: str, module: Any) -> str:
    """Everything about the settings of the experiment `name`: those of its Config, and its PRESETS."""
    config_type, base = module.Config, module.Config()
    defaults, about = flatten(base), dict(descriptions(config_type))
    lines = [f"usage: dcem train {name} [key=value ...] [-m]", "", _summary(config_type), ""]
    lines += [f"settings of {name}, with their defaults:"]
    for key, known in known_settings(config_type).items():
        head = f"  {f'{key}={as_typed(defaults[key])}':{_INDENT}}  ({_allowed(known)})"
        text, indent = f"{head} {about.get(key, '')}".rstrip(), " " * (_INDENT + 4)
        lines += textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    lines += ["", "presets:"]
    for preset, changes in module.PRESETS.items():
        changes = flatten(changed(base, changes))
        words = [f"{key}={as_typed(new)}" for key, new in changes.items() if new != defaults[key]]
        text = f"  preset={preset}: {', '.join(words)}"
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    lines += ["", "dcem train --help explains run folders, time limits, sweeps and exit codes."]
    return "\n".join(lines) + "\n"


def as_typed(value: Any) -> str:
    """A value as one would write it on the command line."""
    plain = to_json(value)
    return plain if isinstance(plain, str) else json.dumps(plain, separators=(",", ":"))


def descriptions(config_type: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names of the fields, and what docstrings say about them, those of base classes included."""
    for base in reversed(config_type.__mro__):
        for _, names, text in _ENTRY.findall(inspect.cleandoc(base.__dict__.get("__doc__") or "")):
            yield from ((f"{prefix}{name}", " ".join(text.split())) for name in names.split(", "))
    hints = typing.get_type_hints(config_type)
    for field in dataclasses.fields(config_type):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from descriptions(hints[field.name], f"{prefix}{field.name}.")


def _summary(config_type: Any) -> str:
    """The docstring up to its list of attributes."""
    doc = inspect.cleandoc(config_type.__doc__ or "")
    return re.split(f"^Attributes|{_ENTRY.pattern}", doc, maxsplit=1, flags=re.MULTILINE)[0].strip()


def _allowed(known: Known) -> str:
    """Type and range; words to choose from say it all."""
    if known.range is None:
        return type_text(known.type)
    text = known.range.text(several=typing.get_origin(known.type) is tuple)
    return text if known.range.among else f"{type_text(known.type)}, {text}"

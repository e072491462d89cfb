"""Experiment configs: frozen dataclasses, checked on creation, named by what they change."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
import re
from collections.abc import Collection, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from dcem_lab.runs.settings import known_settings, require

_LONGEST_NAME = 100
_HUGE = 2**63


def check_numbers(config: Any) -> None:
    """ValueError unless every number of a config is finite and fits into 64 bits, those in tuples too.

    Ranges are checked by the config itself; no config allows an infinite learning rate.
    """
    for field, value in flatten(config).items():
        for number in value if isinstance(value, tuple | list) else (value,):
            if isinstance(number, float):
                require(math.isfinite(number), field, value, "finite")
            elif isinstance(number, int):
                require(abs(number) < _HUGE, field, value, f"below {_HUGE} in size")


def to_json(value: Any) -> Any:
    """A config as plain JSON values: dataclasses become dicts, tuples lists, enums names, paths strings."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.name
    return str(value) if isinstance(value, Path) else value


def flatten(config: Any) -> dict[str, Any]:
    """Dotted field names and their values: `{'seed': 0, 'solver.tau': 1.0}`."""
    return {key: attrgetter(key)(config) for key in known_settings(type(config))}


def changed(config: Any, changes: Mapping[str, Any], group: str = "") -> Any:
    """`config` with other values for some of its dotted settings; a ValueError says their whole names."""
    own = {key: value for key, value in changes.items() if "." not in key}
    for name in dict.fromkeys(key.split(".")[0] for key in changes if "." in key):
        start = f"{name}."
        inner = {key.removeprefix(start): value for key, value in changes.items() if key.startswith(start)}
        own[name] = changed(own.get(name, getattr(config, name)), inner, f"{group}{start}")
    try:
        return dataclasses.replace(config, **own)
    except ValueError as error:
        named = str(error).split(" ")[0] in {field.name for field in dataclasses.fields(config)}
        raise ValueError(f"{group if named else ''}{error}") from error


def meant_by(name: str, keys: Collection[str]) -> list[str]:
    """The dotted settings that a name may stand for: itself, or else those that end in it.

    >>> meant_by("samples", ["seed", "planner.samples", "evaluation.samples"])
    ['planner.samples', 'evaluation.samples']
    """
    return [name] if name in keys else [key for key in keys if key.endswith(f".{name}")]


def short_name(key: str, keys: Collection[str]) -> str:
    """The shortest ending of a dotted setting that means no other.

    >>> short_name("loop.n_envs", ["seed", "loop.n_envs"])
    'n_envs'
    """
    parts = key.split(".")
    endings = (".".join(parts[start:]) for start in reversed(range(len(parts))))
    return next(ending for ending in endings if meant_by(ending, keys) == [key])


def variant(config: Any, base: Any, name: str | None = None) -> str:
    """A folder name for what `config` changes in `base`, apart from the seed; `name` is what base is called.

    For example `default`, `method=gd,lr=0.01` or `tiny,lr=0.01`. Names that would be long or hard to type are
    cut and end in a hash of the whole.
    """
    before, after = flatten(base), flatten(config)
    changes = [
        f"{short_name(key, after)}={_text(value)}"
        for key, value in after.items()
        if key != "seed" and value != before[key]
    ]
    whole = ",".join([name, *changes] if name else changes) or "default"
    plain = re.sub(r"[^A-Za-z0-9._=,+-]", "_", whole)
    if plain == whole and len(whole) <= _LONGEST_NAME:
        return whole
    return f"{plain[:_LONGEST_NAME]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def _text(value: Any) -> str:
    plain = to_json(value)
    return "+".join(map(_text, plain)) if isinstance(plain, list) else str(plain)

"""run.json: what ran, with which settings, code and machine, how far it got and how it ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from dcem_lab.runs import facts
from dcem_lab.runs.files import read_small, write_json
from dcem_lab.terminal import FolderError

RECORD = "run.json"
_STATUSES = ("running", "finished", "interrupted", "failed")
_HUGE = 2**63
_LONGEST = 300
_DEEPEST = 20  # a config has groups of settings in groups; none has this many


class RunError(FolderError):
    """A run folder cannot be used: taken by another process, of another config, or damaged."""


def read_record(folder: Path | str) -> dict[str, Any]:
    """What `run.json` of a run folder says; RunError when there is none, or it is no record of a run.

    The fields below exist and have the right types, even if the file is untrusted.
    """
    path = Path(folder) / RECORD
    try:
        record = json.loads(read_small(Path(folder), RECORD))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read as the record of a run: {error}") from error
    if not isinstance(record, dict):
        raise RunError(f"{path} must hold a JSON object, got {type(record).__name__}")
    if _is_deep(record):
        raise RunError(f"{path} must not be nested deeper than {_DEEPEST} levels")
    for name, (default, allowed, holds) in _FIELDS.items():
        value = record.setdefault(name, default)
        if not holds(value):
            raise RunError(f"{path}: {name} must be {allowed}, got {_short(value)}")
    return record


def _is_name(value: object) -> bool:
    """Results are kept in folders of this name."""
    return isinstance(value, str) and "/" not in value and value not in (".", "..") and value.isprintable()


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _HUGE


def _is_duration(value: object) -> bool:
    return type(value) in (int, float) and 0 <= cast(float, value) < _HUGE


# name: (what a record without it has, what is allowed, whether a value is)
_FIELDS: dict[str, tuple[object, str, Callable[[object], bool]]] = {
    "experiment": ("", "a name", _is_name),
    "variant": ("", "a name", _is_name),
    "seed": (0, "a whole number from 0", _is_count),
    "command": ("", "text", _is_text),
    "config": ({}, "an object", lambda value: isinstance(value, dict)),
    "started": ("", "text", _is_text),
    "sessions": ([], "a list", lambda value: isinstance(value, list)),
    "status": (None, f"one of {', '.join(_STATUSES)}", lambda value: value in _STATUSES),
    "step": (0, "a whole number from 0", _is_count),
    "steps": (None, "a whole number from 0, or null", lambda value: value is None or _is_count(value)),
    "wall_seconds": (0.0, "a number from 0", _is_duration),
    "error": (None, "text or null", lambda value: value is None or _is_text(value)),
}


def _is_deep(value: object, levels: int = _DEEPEST) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_is_deep(item, levels - 1) for item in items)


def write_record(folder: Path, record: dict[str, Any]) -> None:
    write_json(folder / RECORD, record)


@contextmanager
def recorded(folder: Path, module: str, *names: str, **options: object) -> Iterator[dict[str, Any]]:
    """Records in `folder` a measurement of `python -m module`, to which other results may be added.

    The commit is that of its beginning: later, its own results are changes. Nothing is written if it fails.
    """
    words = list(names)
    for option, value in options.items():
        words += [f"--{option}", *map(str, value if isinstance(value, list | tuple) else [value])]
    command, here, began = " ".join(["python", "-m", module, *words]), facts.here(), time.perf_counter()
    record: dict[str, Any] = {"command": command, "started": _now()}
    yield record
    write_record(folder, record | here | {"wall_seconds": round(time.perf_counter() - began, 3)})


def continued_record(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The record of a session that begins or resumes a run; RunError when the folder holds another config."""
    now = _now()
    old: dict[str, Any] = {"config": config, "started": now, "steps": None, "sessions": []}
    if (folder / RECORD).exists():
        old = read_record(folder)
    if old["config"] != config:
        raise RunError(
            f"{folder} holds a run with {_differences(old['config'], config)}; "
            "choose another run_dir, or delete the folder to start again"
        )
    return {
        "config": config,
        "started": old["started"],
        "steps": old["steps"],
        "error": None,
        **facts.here(),
        "sessions": [*old["sessions"], {"started": now, **facts.commit()}],
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(f"{name}={_short(old.get(name))} (now {_short(new.get(name))})" for name in names)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."

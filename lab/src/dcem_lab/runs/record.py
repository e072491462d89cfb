"""run.json: what ran, with which settings, code and machine, how far it got and how it ended."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dcem_lab.runs import facts
from dcem_lab.runs.files import read_small, write_bytes

RECORD = "run.json"


class RunError(RuntimeError):
    """A run folder cannot be used: taken by another process, of another config, or damaged."""


def read_record(folder: Path | str) -> dict[str, Any]:
    """What `run.json` of a run folder says; RunError when there is none or it is not readable."""
    path = Path(folder) / RECORD
    try:
        record = json.loads(read_small(Path(folder), RECORD))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read as the record of a run: {error}") from error
    if not isinstance(record, dict):
        raise RunError(f"{path} must hold a JSON object, got {type(record).__name__}")
    return record


def write_record(folder: Path, record: dict[str, Any]) -> None:
    write_bytes(folder / RECORD, json.dumps(record, indent=1).encode() + b"\n")


def continued_record(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The record of a session that begins or resumes a run; RunError when the folder holds another config."""
    old = read_record(folder) if (folder / RECORD).exists() else {}
    if old and old.get("config") != config:
        raise RunError(
            f"{folder} holds a run with {_differences(old.get('config') or {}, config)}; "
            "choose another run_dir, or delete the folder to start anew"
        )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "config": config,
        "started": old.get("started", now),
        "steps": old.get("steps"),
        "error": None,
        **facts.here(),
        "sessions": [*old.get("sessions", []), {"started": now, **facts.commit()}],
    }


def _differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(f"{name}={old.get(name)!r} (now {new.get(name)!r})" for name in names)

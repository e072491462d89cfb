"""Atomic file writes (temporary name, fsync, rename), and JSON with a checksum."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_SMALL = 16 << 20
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, written inside, which then takes its place in one step.

    Whatever happens on the way (a full disk, SIGKILL, a power cut), `path` holds the old content or the new.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # in a folder from elsewhere it may be a symlink
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, value: object) -> None:
    """Replace `path` by JSON that a person can read, atomically."""
    write_bytes(path, json.dumps(value, indent=1).encode() + b"\n")


def write_csv(
    path: Path, columns: Sequence[str], rows: Iterable[Iterable[object]], digits: int | None = None
) -> None:
    """Replace `path` by a table, creating its folder if needed; floats with this many digits, or exactly."""
    if digits is not None:
        rows = ([f"{x:.{digits}g}" if isinstance(x, float) else x for x in row] for row in rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.getvalue().encode())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def regular_file(folder: Path, name: object) -> Path:
    """`folder/name`, refused unless it is a plain file (no link, no pipe) with a name that stays in there."""
    if not (isinstance(name, str) and _PLAIN_NAME.fullmatch(name)):
        raise ValueError(f"file name {name!r} must be letters, digits, '.', '_' and '-', and no path")
    path = folder / name
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        raise ValueError(f"file {name} is missing") from None
    if not stat.S_ISREG(mode):
        raise ValueError(f"file {name} must be a regular file, not a link or a device")
    return path


def read_small(folder: Path, name: str) -> bytes:
    """The content of a JSON file, refused where it is not a plain file or larger than any of ours gets."""
    path = regular_file(folder, name)
    if path.stat().st_size > _SMALL:
        raise ValueError(f"file {name} is larger than {_SMALL >> 20} MiB")
    return path.read_bytes()


def seal(body: dict[str, object]) -> bytes:
    """JSON of `body` preceded by its own SHA-256, so that `unseal` notices any changed byte.

    >>> unseal(seal({"step": 3}))
    {'step': 3}
    """
    return _json({"sha256": hashlib.sha256(_json(body)).hexdigest(), **body})


def unseal(content: bytes) -> dict[str, object]:
    """The body of a sealed JSON file; ValueError when a byte of it differs from what `seal` wrote."""
    try:
        body = json.loads(content)
        del body["sha256"]
        # Writing it again and comparing covers the digest, the body, and bytes that JSON would overlook.
        intact = seal(body) == content
    except (ValueError, TypeError, KeyError, RecursionError):
        intact = False
    if not intact:
        raise ValueError("its content does not match its SHA-256")
    return body


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"

"""Scalars over time: one JSON line per record, and TensorBoard."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from dcem_lab.runs.files import regular_file

_LONGEST_LINE = 1 << 20
_HUGE = 2**63
_FLUSH_SECONDS = 2.0  # for readers of the file; a checkpoint flushes by itself


class JsonLines:
    """An append-only file of records that is truncated to its length at the last checkpoint.

    A crash may leave a partial line, and lines of steps that will be repeated. All of that is after the
    position stored in the checkpoint, so truncating there leaves what an uninterrupted run would have.
    """

    def __init__(self, path: Path, position: int) -> None:
        self._file = path.open("ab")
        size = os.fstat(self._file.fileno()).st_size
        if size < position:
            self._file.close()
            raise ValueError(f"{path} has {size} bytes, and its checkpoint has seen {position}")
        self._file.truncate(position)
        self._flushed = time.monotonic()

    def write(self, record: dict[str, float]) -> None:
        self._file.write(json.dumps(record).encode() + b"\n")
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._file.flush()
            self._flushed = time.monotonic()

    def position(self) -> int:
        """The length of the file, with everything in it safe on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self._file.close()


def read_records(path: Path) -> list[dict[str, float]]:
    """The whole records of a log, also of one that is being written (a last half line is left out).

    ValueError where it is no log: not a plain file, or a line in it is not an object of numbers.
    """
    records: list[dict[str, float]] = []
    if not path.exists():
        return records
    with regular_file(path.parent, path.name).open("rb") as file:
        while (line := file.readline(_LONGEST_LINE)).endswith(b"\n"):
            records.append(_numbers(line, f"line {len(records) + 1} of {path}"))
    if len(line) == _LONGEST_LINE:
        raise ValueError(f"line {len(records) + 1} of {path} is longer than {_LONGEST_LINE} bytes")
    return records


def _numbers(line: bytes, where: str) -> dict[str, float]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} must be JSON: {error}") from error
    if not (isinstance(record, dict) and all(map(_is_number, record.values()))):
        raise ValueError(f"{where} must be an object of numbers")
    return record


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < _HUGE)


class TensorBoard:
    """Event files for TensorBoard, if wanted."""

    def __init__(self, folder: Path, first_step: int, wanted: bool) -> None:
        """Events at or past `first_step` of an earlier session are hidden: those steps are done again."""
        self._folder, self._first_step, self._wanted = folder, first_step, wanted
        self._writer: Any = None

    def write(self, step: int, scalars: dict[str, float]) -> None:
        if not self._wanted:
            return
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # slow to import

            self._writer = SummaryWriter(str(self._folder), purge_step=self._first_step)
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

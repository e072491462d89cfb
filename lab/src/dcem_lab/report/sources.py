"""Where the page's numbers come from, and what a section of it is."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dcem_lab.report.html import Child, Html, command, element, paragraph
from dcem_lab.report.tables import Claim, details, table

# Words of a command line that say where and how long, not what.
_PRIVATE = ("run_dir=", "time_limit=", "tensorboard=")


@dataclass(frozen=True)
class Sources:
    """The folders that the page is built from.

    results: of the study; checkout: with benchmarks and docs; quick: of a quick run, or None.
    """

    results: Path
    checkout: Path
    quick: Path | None = None

    @property
    def benchmarks(self) -> Path:
        """The library beside its peers, on a CPU."""
        return self.checkout / "benchmarks" / "results"

    @property
    def gpu_benchmarks(self) -> Path:
        """Kernels, solves, planning and model updates on a CUDA device."""
        return self.checkout / "lab" / "benchmarks" / "gpu" / "results"

    @property
    def agent_benchmarks(self) -> Path:
        """Steps of training, on a CPU."""
        return self.checkout / "lab" / "benchmarks" / "results"

    @property
    def docs(self) -> Path:
        """Of the lab."""
        return self.checkout / "lab" / "docs"


@dataclass(frozen=True)
class Section:
    """A part of the page. `data` is read by its scripts, `claims` go into the summary on top."""

    id: str
    title: str
    body: Html
    claims: Sequence[Claim] = ()
    data: dict[str, Any] = field(default_factory=dict)


def not_run(how: str) -> Html:
    """Said where there are no results."""
    return element("div", paragraph("Not run yet. To run it:"), command(how), class_="absent")


def or_not_run(body: Callable[[], Html], how: str) -> Html:
    """`body()`, or that it has not been run where files are missing."""
    try:
        return body()
    except FileNotFoundError:
        return not_run(how)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def read_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def reproduce(record: dict[str, Any]) -> Html:
    """The command of a run, how long it took, and on what."""
    seconds, machine = duration(record.get("wall_seconds")), machine_of(record)
    words = element("code", public_command(record.get("command", "unknown")))
    return paragraph("Reproduce it: ", words, f" ({seconds} on {machine}).")


def machine_of(record: dict[str, Any]) -> str:
    machine = record.get("machine")
    if not machine:
        return "an unknown machine"
    parts = [machine.get("gpu"), f"{machine.get('cores', '?')} cores of {machine.get('cpu', 'unknown')}"]
    return ", ".join(filter(None, parts))


def provenance(records: dict[str, dict[str, Any]]) -> Html:
    """How each result came about, from the record of its run: command, time, machine."""
    rows: list[dict[str, Child]] = []
    for name, record in records.items():
        rows.append(
            {
                "result": name,
                "command": element("code", public_command(record.get("command", "unknown"))),
                "wall time": duration(record.get("wall_seconds")),
                "machine": machine_of(record),
                "torch": record.get("versions", {}).get("torch", "unknown"),
                "started": str(record.get("started", "unknown"))[:10],
                "commit": (record.get("commit") or "not recorded")[:12],
            }
        )
    return details("Commands, wall times and machines", table(rows))


def public_command(text: str) -> str:
    """
    >>> public_command("dcem train cartpole seed=1 run_dir=runs/a time_limit=400")
    'dcem train cartpole seed=1'
    """
    return " ".join(word for word in text.split() if not word.startswith(_PRIVATE))


def duration(seconds: float | None) -> str:
    """
    >>> duration(381.3), duration(7300)
    ('6 min 21 s', '2 h 1 min')
    """
    if seconds is None:
        return "unknown"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"

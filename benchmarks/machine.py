"""Where and what was measured: machine, load and commit."""

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from environments import ROOT


def machine(threads: int) -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": next(names, platform.processor()),
        "cores": os.cpu_count(),
        "threads": threads,
        "load before": round(os.getloadavg()[0], 2),  # of others: these tables want a quiet machine
        "python": platform.python_version(),
        "system": platform.platform(),
        "commit": commit(),
    }


def commit() -> str:
    """The commit measured, marked when the working tree differs from it in more than results."""
    head = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)*/results/*")
    return f"{head}-dirty" if changed else head or "unknown"


def _git(*words: str) -> str:
    git = ["git", "-C", str(ROOT), *words]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()

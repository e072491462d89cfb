"""What a reader needs to repeat a run: commit, versions, machine."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import torch

_PACKAGES = ("dcem", "torch", "numpy", "safetensors", "triton", "mujoco", "dm_control", "gymnasium")


def here() -> dict[str, object]:
    """All of them."""
    return {**commit(), "versions": versions(), "machine": machine()}


@functools.cache
def commit() -> dict[str, object]:
    """The commit this code runs from and whether files differ from it.

    Where a copy of the code runs without its history, DCEM_COMMIT says which one it is, else both are None.
    """
    if told := os.environ.get("DCEM_COMMIT"):
        return {"commit": told, "dirty": None}
    source = Path(__file__)
    if _git("ls-files", "--error-unmatch", source.name) is None:  # installed, or git is missing
        return {"commit": None, "dirty": None}
    return {"commit": _git("rev-parse", "HEAD"), "dirty": bool(_git("status", "--porcelain"))}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, object]:
    return {
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

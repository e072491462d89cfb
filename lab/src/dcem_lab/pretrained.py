"""Weights by name: safetensors files and one manifest with configs and SHA-256. Nothing is unpickled."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dcem_lab.runs.files import read_small, seal, unseal, write_bytes
from dcem_lab.runs.tensors import read_tensors, write_tensors
from dcem_lab.terminal import FolderError

_INSTALLED = Path(__file__).parent / "weights"
FOLDER = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "weights"  # in a checkout
"""The folder of the pretrained weights."""

_MANIFEST = "manifest.json"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


class PretrainedError(FolderError):
    """Weights are unknown, damaged or cannot be saved."""


def available(folder: Path | str = FOLDER) -> list[str]:
    """The names that `load` takes."""
    return sorted(_manifest(Path(folder)))


def describe(name: str, folder: Path | str = FOLDER) -> dict[str, Any]:
    """The config saved under a name, without its weights; empty for a name that is not there."""
    config = _manifest(Path(folder)).get(name, {}).get("config", {})
    return config if isinstance(config, dict) else {}


def load(name: str, folder: Path | str = FOLDER) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the state dict (on the CPU) saved under a name; an error if any byte has changed.

    `config, state = load("cheetah-run"); model.load_state_dict(state)`. `folder` is for weights from
    elsewhere: they cannot run code or reach outside of it.
    """
    manifest = _manifest(Path(folder))
    if name not in manifest:
        near = difflib.get_close_matches(name, manifest, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise PretrainedError(f"there are no weights {name!r}; {hint}known: {', '.join(sorted(manifest))}")
    entry = manifest[name]
    try:
        return entry["config"], read_tensors(Path(folder), entry["tensors"])
    except (ValueError, KeyError, TypeError) as error:
        raise PretrainedError(f"the weights {name!r} in {folder} are damaged: {error}") from error


def save(
    name: str, config: Mapping[str, Any], state: Mapping[str, Tensor], folder: Path | str = FOLDER
) -> Path:
    """Save a state dict and its config (JSON values) under a name, replacing earlier ones; returns the file.

    >>> import tempfile, torch
    >>> folder = tempfile.mkdtemp()
    >>> path = save("line", {"width": 3}, {"weight": torch.ones(1, 3)}, folder)
    >>> load("line", folder)
    ({'width': 3}, {'weight': tensor([[1., 1., 1.]])})
    """
    if not _NAME.fullmatch(name):
        raise PretrainedError(f"name must be lower-case letters, digits, '.', '_' and '-', got {name!r}")
    try:
        plain = json.loads(json.dumps(config, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise PretrainedError(f"config must hold JSON values: {error}") from error
    folder = Path(folder)
    manifest = _manifest(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.safetensors"
    entry = {"tensors": write_tensors(path, dict(state)), "config": plain}
    write_bytes(folder / _MANIFEST, seal({"weights": dict(sorted({**manifest, name: entry}.items()))}))
    return path


def _manifest(folder: Path) -> dict[str, Any]:
    if not (folder / _MANIFEST).exists():
        return {}
    try:
        weights = unseal(read_small(folder, _MANIFEST))["weights"]
        if not isinstance(weights, dict):
            raise ValueError(f"weights must be an object, got {weights!r}")
        return weights
    except (ValueError, KeyError) as error:
        raise PretrainedError(f"{folder / _MANIFEST} is damaged: {error}") from error

"""Crash-safe checkpoints: a safetensors file, then a manifest whose arrival commits the checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcem_lab.runs.files import read_small, seal, unseal, write_bytes
from dcem_lab.runs.tensors import read_tensors, write_tensors
from dcem_lab.runs.tree import Tree, decode, encode, tensor_names
from dcem_lab.terminal import FolderError, printable

_FORMAT = "dcem checkpoint 1"
_KEEP = 2


class CheckpointError(FolderError):
    """A checkpoint could not be saved, or none of those present can be used."""


@dataclass(frozen=True)
class Checkpoint:
    """The state after `step` completed steps, and the notes saved with it."""

    step: int
    tree: Tree
    notes: dict[str, Any]


class Checkpoints:
    """The checkpoints of one folder, of which the last two good ones are kept.

    >>> import tempfile, torch
    >>> store = Checkpoints(Path(tempfile.mkdtemp()))
    >>> store.save(3, {"weights": torch.ones(2), "lr": 0.1})
    >>> store.load().tree["lr"]
    0.1
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._good: list[tuple[str, str]] = []  # (manifest, data) names, oldest first

    def save(self, step: int, tree: Tree, notes: Mapping[str, object] | None = None) -> None:
        """Write a checkpoint; on any failure the earlier ones stay as they were.

        The data file lands first and the manifest last. A crash in between leaves a data file that no
        manifest names, which the next save removes.
        """
        encoded, tensors = encode(tree)
        manifest = _manifest_name(step)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            entry = write_tensors(self.folder / self._data_name(step), tensors)
            about = {"format": _FORMAT, "step": step, "notes": dict(notes or {})}
            write_bytes(self.folder / manifest, seal({**about, "tensors": entry, "tree": encoded}))
        except OSError as error:
            intact = f"the one in {self._good[-1][0]} is intact" if self._good else "there is no earlier one"
            raise CheckpointError(
                f"the checkpoint of step {step} could not be saved in {self.folder} ({error}); {intact}"
            ) from error
        earlier = [pair for pair in self._good if pair[0] != manifest]
        self._good = [*earlier, (manifest, str(entry["file"]))][-_KEEP:]
        self._remove_others()

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that verifies completely, or None where there is none yet.

        A damaged one is skipped with a warning that says what is wrong with it.
        """
        if self.folder.is_symlink():
            raise CheckpointError(f"{self.folder} must not be a link; link the whole run folder instead")
        faults = []
        for path in sorted(self.folder.glob("step*.json"), key=lambda path: path.name, reverse=True):
            try:
                checkpoint, data = _read(self.folder, path.name)
            except (ValueError, OSError) as error:
                faults.append(f"{path.name}: {error}")
                continue
            if faults:
                reasons = f"{self.folder}: using {path.name}, because of {'; '.join(faults)}"
                warnings.warn(printable(reasons), stacklevel=2)
            self._good = [(path.name, data)]
            return checkpoint
        if faults:
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be used: {'; '.join(faults)}; "
                "delete the folder to start again"
            )
        return None

    def _data_name(self, step: int) -> str:
        """A data file never replaces one that a manifest names."""
        name = f"step{step:012d}.safetensors"
        return name if name not in dict(self._good).values() else f"step{step:012d}-1.safetensors"

    def _remove_others(self) -> None:
        """Manifests go before the data they name: a manifest never outlives its data."""
        if len(self._good) < _KEEP:
            return
        kept = {name for pair in self._good for name in pair}
        # The last kind is what safetensors leaves when it is killed while it writes.
        for pattern in ("step*.json", "step*.safetensors", ".step*.tmp", ".tmp*"):
            for path in self.folder.glob(pattern):
                if path.name not in kept:
                    path.unlink(missing_ok=True)


def _read(folder: Path, name: str) -> tuple[Checkpoint, str]:
    """Everything is checked: the seal, the names, the length and SHA-256 of the data, the tensors named."""
    body = unseal(read_small(folder, name))
    if body.get("format") != _FORMAT:
        raise ValueError(f"its format must be {_FORMAT!r}, got {body.get('format')!r}")
    step, notes, entry, encoded = (body.get(key) for key in ("step", "notes", "tensors", "tree"))
    if not (type(step) is int and step >= 0 and isinstance(notes, dict) and isinstance(entry, dict)):
        raise ValueError("its manifest must have step, notes, tensors and tree")
    if name != _manifest_name(step):
        raise ValueError(f"its name must be {_manifest_name(step)}")
    tensors = read_tensors(folder, entry)
    named = tensor_names(encoded)
    if named != set(tensors):
        raise ValueError(f"tensors {sorted(named ^ set(tensors))[:3]} are not in both manifest and data")
    return Checkpoint(step, decode(encoded, tensors), notes), str(entry["file"])


def _manifest_name(step: int) -> str:
    return f"step{step:012d}.json"

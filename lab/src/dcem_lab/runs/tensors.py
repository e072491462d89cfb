"""Tensors on disk: safetensors files, each with an entry {file, bytes, sha256} checked before use."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from dcem_lab.runs.files import regular_file, replacing, sha256


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> dict[str, object]:
    """Write `tensors` to `path`, atomically; returns the entry that `read_tensors` verifies."""
    own = _unshared(tensors)
    with replacing(path) as temporary:
        try:
            safetensors.torch.save_file(own, temporary)
        except SafetensorError as error:  # its only report of a full or read-only disk
            raise OSError(str(error)) from error
        temporary.chmod(0o644)  # safetensors makes files that no other user may read
        return {"file": path.name, "bytes": temporary.stat().st_size, "sha256": sha256(temporary)}


def read_tensors(folder: Path, entry: object) -> dict[str, Tensor]:
    """The tensors of a file described by `entry`, on the CPU; ValueError says what is wrong with the file.

    Length and SHA-256 come first; safetensors then checks every offset of the header against the length, so
    that nothing is allocated that the file does not hold.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"the entry for a tensor file must have file, bytes and sha256, got {entry!r}")
    path = regular_file(folder, entry.get("file"))
    size = path.stat().st_size
    if size != entry.get("bytes"):
        raise ValueError(f"{path.name} has {size} bytes instead of {entry.get('bytes')}")
    if sha256(path) != entry.get("sha256"):
        raise ValueError(f"the SHA-256 of {path.name} is not the recorded one")
    try:
        return safetensors.torch.load_file(path)
    except (SafetensorError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path.name} is not a valid safetensors file: {error}") from error


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors that share no memory with each other, which is all that safetensors writes."""
    storages: set[int] = set()
    own = {}
    for name, tensor in tensors.items():
        dense = tensor.detach().cpu().contiguous()
        storage = dense.untyped_storage()
        if storage.nbytes() != dense.nbytes or storage.data_ptr() in storages:
            dense = dense.clone()
        storages.add(dense.untyped_storage().data_ptr())
        own[name] = dense
    return own

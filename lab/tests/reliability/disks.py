"""A disk that is full or has become read-only: a save fails in a sentence, the checkpoint before stays."""

from __future__ import annotations

import os
import random
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dcem_lab.runs import CheckpointError, Checkpoints
from reliability.outcome import Outcome

DISK = 1 << 20


def measure(count: int, folder: Path) -> Outcome:
    """Saves on a small disk that another program fills to a random degree, and on one remounted read-only."""
    chance = random.Random(0)
    failures, full, read_only = [], 0, 0
    with small_disk(folder / "disk") as disk:
        store = Checkpoints(disk / "checkpoints")
        store.save(0, tree(0))
        saved = 0
        for step in range(1, count + 1):
            frozen = isinstance(disk, Mounted) and step % 5 == 0
            with disk.read_only() if frozen else disk.filled(chance.randrange(DISK)):
                try:
                    store.save(step, tree(step))
                    saved = step
                except CheckpointError as error:
                    full, read_only = full + (not frozen), read_only + frozen
                    if f"step{saved:012d}.json is intact" not in str(error):
                        failures.append(f"step {step}: {error}")
            if not is_there(disk / "checkpoints", saved):
                failures.append(f"step {step}: the checkpoint of step {saved} is gone")
    kind = "a full disk of 1 MiB" if isinstance(disk, Mounted) else "a limit of file sizes"
    return Outcome(count, failures, notes=f"{full} saves met {kind}, {read_only} a read-only one")


def is_there(folder: Path, step: int) -> bool:
    found = Checkpoints(folder).load()
    return found is not None and found.step == step and torch.equal(found.tree["w"], tree(step)["w"])


def tree(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((40_000,), float(step))}  # 160 kB: at most six fit


class Mounted(type(Path())):  # type: ignore[misc]
    """A small file system of its own."""

    @contextmanager
    def filled(self, size: int) -> Iterator[None]:
        filler = self / "filler"
        try:
            with filler.open("wb") as file:
                file.write(bytes(size))
        except OSError:
            pass  # then it is full to the brim
        try:
            yield
        finally:
            filler.unlink()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        subprocess.run(["mount", "-o", "remount,ro", self], check=True)
        try:
            yield
        finally:
            subprocess.run(["mount", "-o", "remount,rw", self], check=True)


class Limited(type(Path())):  # type: ignore[misc]
    """A folder in which, for want of a mount, files may only get so large."""

    @contextmanager
    def filled(self, size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((DISK - size) // 4, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def small_disk(folder: Path) -> Iterator[Mounted | Limited]:
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        yield Limited(folder)
        return
    try:
        yield Mounted(folder)
    finally:
        subprocess.run(["umount", folder], check=True)

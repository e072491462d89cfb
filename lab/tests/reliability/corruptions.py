"""Flipped bits, cut and grown files, zeroed blocks: every corruption is named, none is loaded."""

from __future__ import annotations

import random
import time
import warnings
from pathlib import Path

import torch

from dcem_lab import pretrained
from dcem_lab.pretrained import PretrainedError
from dcem_lab.runs import Checkpoints
from reliability.outcome import Outcome


def measure(count: int, folder: Path) -> Outcome:
    chance = random.Random(0)
    store = Checkpoints(folder / "checkpoints")
    store.save(1, {"w": torch.ones(20), "history": [1]})
    store.save(2, {"w": torch.full((20,), 2.0), "history": [1, 2]})
    (folder / "shipped").mkdir()
    pretrained.save("weights", {"width": 20}, {"w": torch.ones(20)}, folder / "shipped")
    shipped = sorted((folder / "shipped").iterdir())
    files = [*sorted((folder / "checkpoints").glob("*2.*")), *shipped]
    originals = {path: path.read_bytes() for path in files}
    failures, slowest, done = [], 0.0, 0
    while done < count:
        path = chance.choice(files)
        kind, content = corrupt(originals[path], chance)
        if content == originals[path]:
            continue
        done += 1
        path.write_bytes(content)
        began = time.monotonic()
        problem = check_shipped(folder) if path in shipped else check_checkpoints(folder, path)
        slowest = max(slowest, time.monotonic() - began)
        if problem:
            failures.append(f"{path.name}, {kind}: {problem}")
        path.write_bytes(originals[path])
    return Outcome(count, failures, slowest, "checkpoints, shipped weights and the manifests of both")


def corrupt(original: bytes, chance: random.Random) -> tuple[str, bytes]:
    content = bytearray(original)
    place = chance.randrange(len(content))
    kind = chance.choice(["flip", "cut", "tail", "zeros", "swap"])
    if kind == "flip":
        content[place] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del content[place:]
    elif kind == "tail":
        content += chance.randbytes(1 + chance.randrange(9))
    elif kind == "zeros":
        content[place : place + 8] = bytes(len(content[place : place + 8]))
    else:
        other = chance.randrange(len(content))
        content[place], content[other] = content[other], content[place]
    return f"{kind} at {place}", bytes(content)


def check_checkpoints(folder: Path, damaged: Path) -> str:
    """What is wrong with how a damaged newest checkpoint was met; nothing when the older one came back."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = Checkpoints(folder / "checkpoints").load()
    if found is None or found.step != 1 or not torch.equal(found.tree["w"], torch.ones(20)):
        return f"loaded {found}"
    said = " ".join(str(warning.message) for warning in caught)
    return "" if damaged.stem in said else f"it was not named: {said}"


def check_shipped(folder: Path) -> str:
    try:
        pretrained.load("weights", folder / "shipped")
    except PretrainedError as error:
        return "" if "damaged" in str(error) else str(error)
    return "loaded"

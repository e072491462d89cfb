"""Files and words made to run code, to reach outside of their folder or to take all memory: none succeeds."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import resource
import shutil
import struct
import sys
import time
import warnings
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from dcem_lab import cli, pretrained
from dcem_lab.pretrained import PretrainedError
from dcem_lab.runs import CheckpointError, Checkpoints, RunError, load_checkpoint
from dcem_lab.runs.config import to_json
from dcem_lab.runs.files import seal, unseal
from reliability.outcome import Outcome
from reliability.training import TOY, tiny, train

NOTES = "0 executed; by way of checkpoints, shipped weights, run folders and the command line"
HUGE = 1 << 50
MEMORY = 256 << 20  # a payload that takes more than this has succeeded
MANIFEST, DATA = "step000000000005.json", "step000000000005.safetensors"
REFUSALS = (CheckpointError, RunError, PretrainedError, ValueError)


class Evil:
    """Unpickled, it leaves a file behind."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


def measure(count: int, folder: Path) -> Outcome:
    """Each payload on a copy of a good run, by the loader that would meet it. At most `count` of them."""
    good = folder / "good"
    train(TOY, good, tiny(TOY))
    chosen = list(PAYLOADS.items())[:count]
    failures, slowest = [], 0.0
    before_all = Path.cwd()
    for name, attack in chosen:
        place = folder / name.replace(" ", "-")
        shutil.copytree(good, place / "run")
        (place / "secret").write_text('{"step": 3}\n' * 50)
        secret, memory = (place / "secret").read_bytes(), peak_memory()
        os.chdir(place)
        began = time.monotonic()
        try:
            result = attack(place)
        except REFUSALS as refusal:
            result = f"refused: {refusal}"
        finally:
            os.chdir(before_all)
        seconds = time.monotonic() - began
        slowest = max(slowest, seconds)
        if not result.startswith("refused"):
            failures.append(f"{name}: {result}")
        if (place / "canary").exists():
            failures.append(f"{name}: it ran")
        if (place / "secret").read_bytes() != secret:
            failures.append(f"{name}: it wrote outside of its folder")
        if peak_memory() - memory > MEMORY:
            failures.append(f"{name}: it took {(peak_memory() - memory) >> 20} MiB")
    return Outcome(len(chosen), failures, slowest, NOTES)


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# How each is met


def resume(place: Path) -> str:
    """`Run` on the folder: the way of `dcem train`. The toy's preset has 5 steps; this goes on from there."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(TOY, place / "run", tiny(TOY))
    return "accepted"


def load(place: Path) -> str:
    """The way of evaluation."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning says that an older checkpoint was used instead
        try:
            return f"loaded {load_checkpoint(place / 'run').step}"
        except UserWarning as warning:
            return f"refused: {warning}"


def command(*words: str) -> str:
    """`dcem` with these words, in this process."""
    shown = io.StringIO()
    with redirect_stderr(shown), redirect_stdout(shown):
        try:
            code = cli.main(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
    return f"refused: {shown.getvalue()}" if code == 2 else f"exit code {code}: {shown.getvalue()[-300:]}"


# What they are


def forge(
    place: Path,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    then: Callable[[Path], str] | None = None,
) -> str:
    """The newest manifest changed, with a correct seal: who writes a file can also seal it."""
    path = place / "run" / "checkpoints" / MANIFEST
    path.write_bytes(seal({**unseal(path.read_bytes()), **change(unseal(path.read_bytes()))}))
    return (then or load)(place)


def forge_data(content: Callable[[Path], bytes]) -> Callable[[Path], str]:
    """The newest data changed, with a manifest that vouches for it."""

    def attack(place: Path) -> str:
        data = content(place)
        (place / "run" / "checkpoints" / DATA).write_bytes(data)
        entry = {"file": DATA, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return forge(place, lambda _: {"tensors": entry})

    return attack


def named(name: object) -> Callable[[Path], str]:
    """A manifest whose data file has this name."""
    return lambda place: forge(place, lambda body: {"tensors": {**body["tensors"], "file": name}})


def grown(value: object) -> Callable[[Path], str]:
    """A checkpoint whose tree has this in it, resumed."""

    def attack(place: Path) -> str:
        def change(body: dict[str, Any]) -> dict[str, Any]:
            tree = body["tree"]
            return {"tree": {**tree, "objects": {**tree["objects"], "x": value}}}

        return forge(place, change, then=resume)

    return attack


def evaluated(experiment: str, pieces: dict[str, Any]) -> Callable[[Path], str]:
    """A run folder that claims to hold a controller, evaluated. A module in it waits to be imported."""

    def attack(place: Path) -> str:
        (place / "run" / "payload.py").write_text("import os\nos.mkdir('canary')\n")
        path = place / "run" / "run.json"
        config = to_json(tiny("planet"))
        record = {**json.loads(path.read_text()), "experiment": experiment, "config": config}
        path.write_text(json.dumps(record))
        weights = {"model": controller_weights(), "decoder": None}
        trained = {"pieces": {**PIECES, **pieces}, "best": weights, "last": weights}
        shutil.rmtree(place / "run" / "checkpoints")
        Checkpoints(place / "run" / "checkpoints").save(5, {"objects": {"trained": trained}})
        sys.path.insert(0, str(place))  # as `python -m dcem` has it
        try:
            return command("eval", "run", "--episodes=1", "--device=cpu")
        finally:
            sys.path.remove(str(place))

    return attack


def controller_weights() -> dict[str, torch.Tensor]:
    from dcem_lab.suite.rssm import RSSM, RSSMConfig

    return RSSM(17, 6, RSSMConfig(hidden=8, width=8)).state_dict()


PIECES = {
    "task": "cheetah-run",
    "action_repeat": None,
    "model": {"hidden": 8, "width": 8},
    "planner": {"samples": 4, "elites": 2, "iterations": 1, "horizon": 2},
    "decoder": None,
}
DECODER = {"latent_dim": 2, "horizon": 10**6, "action_dim": 6, "hidden": [10**6, 10**6]}


def linked(name: str) -> Callable[[Path], str]:
    """A run folder in which this file is a link to one outside."""

    def attack(place: Path) -> str:
        path = place / "run" / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(place / "secret")
        return resume(place)

    return attack


def temporary_link(place: Path) -> str:
    """A link where a temporary file will be written; the run itself is fine, and may go on."""
    for name in (".run.json.tmp", f"checkpoints/.{MANIFEST}.tmp", f"checkpoints/.{DATA}.tmp"):
        (place / "run" / name).symlink_to(place / "secret")
    resume(place)
    return "refused: the links were replaced"


def lying(header: object, data: bytes = b"", length: int | None = None) -> Callable[[Path], str]:
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text) if length is None else length) + text + data
    return forge_data(lambda _: content)


def pickled(place: Path) -> bytes:
    return pickle.dumps(Evil(place / "canary"))


def torch_archive(place: Path) -> bytes:
    """What `torch.save` makes: a zip with a pickle in it."""
    buffer = io.BytesIO()
    torch.save(Evil(place / "canary"), buffer)
    return buffer.getvalue()


def zip_with_paths(place: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../canary/x", "x")
        archive.writestr(f"{place}/canary", "x")
    return buffer.getvalue()


def as_manifest(place: Path) -> str:
    (place / "run" / "checkpoints" / MANIFEST).write_bytes(pickled(place))
    return load(place)


def large_manifest(place: Path) -> str:
    with (place / "run" / "checkpoints" / MANIFEST).open("r+b") as file:
        file.truncate(1 << 40)  # sparse: takes no disk
    return load(place)


def shipped(change: Callable[[dict[str, Any], Path], None]) -> Callable[[Path], str]:
    """Weights with a manifest that lies, in a folder from elsewhere."""

    def attack(place: Path) -> str:
        (place / "shipped").mkdir()
        pretrained.save("weights", {}, {"w": torch.ones(3)}, place / "shipped")
        path = place / "shipped" / "manifest.json"
        body: dict[str, Any] = unseal(path.read_bytes())
        change(body, place)
        path.write_bytes(seal(body))
        return f"loaded {pretrained.load('weights', place / 'shipped')}"

    return attack


def points_to_secret(body: dict[str, Any], place: Path) -> None:
    shutil.copy(place / "shipped" / "weights.safetensors", place / "other")
    body["weights"]["weights"]["tensors"]["file"] = "../other"


def vouches_for_a_pickle(body: dict[str, Any], place: Path) -> None:
    content = pickled(place)
    (place / "shipped" / "weights.safetensors").write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    body["weights"]["weights"]["tensors"] |= entry


def deep() -> object:
    tree: object = 0
    for _ in range(300):
        tree = [tree]
    return tree


def wrong_random_state(place: Path) -> str:
    """A tree that decodes but is no state of anything: resumed, it must be an error and no crash."""

    def change(body: dict[str, Any]) -> dict[str, Any]:
        tree = body["tree"]
        return {"tree": {**tree, "rng": {**tree["rng"], "python": [3, [1], None]}}}

    return forge(place, change, then=resume)


target = {"_target_": "os.mkdir", "path": "canary"}
tensor = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}

PAYLOADS: dict[str, Callable[[Path], str]] = {
    "pickle as data": forge_data(pickled),
    "torch archive as data": forge_data(torch_archive),
    "zip with paths as data": forge_data(zip_with_paths),
    "pickle as manifest": as_manifest,
    "header longer than the file": lying({}, length=HUGE),
    "header of almost 2^64 bytes": lying({}, length=2**64 - 1),
    "tensor of petabytes": lying({"w": {**tensor, "shape": [HUGE], "data_offsets": [0, 4 * HUGE]}}),
    "huge shape on little data": lying({"w": {**tensor, "shape": [HUGE, HUGE]}}, bytes(4)),
    "offsets before the file": lying({"w": {**tensor, "data_offsets": [-4, 0]}}, bytes(4)),
    "overlapping tensors": lying({"w": tensor, "v": tensor}, bytes(4)),
    "manifest of a terabyte": large_manifest,
    "data outside the folder": named("../../../secret"),
    "data by absolute path": named("/etc/passwd"),
    "tree with a target": grown(target),
    "tree with code": grown({"$": "code", "value": "__import__('os').mkdir('canary')"}),
    "deep tree": grown(deep()),
    "random state that is none": wrong_random_state,
    "log linked to a file outside": linked("log.jsonl"),
    "record linked to a file outside": linked("run.json"),
    "lock linked to a file outside": linked(".lock"),
    "checkpoints linked to outside": linked("checkpoints"),
    "temporary files linked to outside": temporary_link,
    "shipped weights outside their folder": shipped(points_to_secret),
    "shipped weights that are a pickle": shipped(vouches_for_a_pickle),
    "experiment in the run folder": evaluated("run.payload", {}),
    "task in a module of the run folder": evaluated("planet", {"task": "run.payload:X-v0"}),
    "model larger than its weights": evaluated("planet", {"model": {"hidden": 10**6, "width": 10**6}}),
    "model with a billion layers": evaluated("planet", {"model": {"layers": 10**9}}),
    "decoder larger than its weights": evaluated("planet", {"decoder": DECODER}),
    "target on the command line": lambda _: command("train", TOY, "_target_=os.mkdir"),
    "target for the launcher": lambda _: command("train", TOY, "-m", "launcher._target_=os.mkdir"),
    "code in a value": lambda _: command("train", TOY, "lr=__import__('os').mkdir('canary')"),
    "config folder on the command line": lambda _: command("train", TOY, "--config-dir=."),
    "interpolation on the command line": lambda _: command("train", TOY, "lr=${oc.env:HOME}"),
}  # fmt: skip

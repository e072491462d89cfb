"""Checkpoints: whole or absent, the newest good one is found, and files from elsewhere do no harm."""

import errno
import hashlib
import json
import os
import random
import resource
import struct
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import dcem_lab.runs.files
from dcem_lab.runs import CheckpointError, Checkpoints
from dcem_lab.runs.files import seal, unseal


def tree(step: int) -> dict[str, object]:
    return {"w": torch.full((4, 5), float(step)), "lr": 0.1 * step, "history": list(range(step))}


@pytest.fixture
def store(tmp_path) -> Checkpoints:
    """Checkpoints of steps 1 and 2, as another process would find them."""
    writer = Checkpoints(tmp_path)
    writer.save(1, tree(1), {"log_bytes": 10})
    writer.save(2, tree(2), {"log_bytes": 20})
    return Checkpoints(tmp_path)


def files(store: Checkpoints) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def names(*steps: int) -> list[str]:
    return sorted(f"step{step:012d}.{kind}" for step in steps for kind in ("json", "safetensors"))


def load_step(folder: Path) -> tuple[int, str]:
    """The step that a fresh process loads, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpoint = Checkpoints(folder).load()
    assert torch.equal(checkpoint.tree["w"], torch.full((4, 5), float(checkpoint.step)))
    return checkpoint.step, " ".join(str(warning.message) for warning in caught)


def test_nothing_yet(tmp_path):
    assert Checkpoints(tmp_path / "none").load() is None


def test_the_newest_comes_back_and_two_are_kept(store):
    for step in range(3, 6):
        store.save(step, tree(step), {"log_bytes": 10 * step})
    assert files(store) == names(4, 5)
    checkpoint = Checkpoints(store.folder).load()
    assert (checkpoint.step, checkpoint.notes) == (5, {"log_bytes": 50})
    assert checkpoint.tree["lr"] == 0.5
    assert checkpoint.tree["history"] == [0, 1, 2, 3, 4]


def test_the_same_step_twice_replaces_only_itself(store):
    store.load()
    store.save(2, tree(2), {"log_bytes": 21})
    store.save(2, tree(2), {"log_bytes": 22})
    assert Checkpoints(store.folder).load().notes == {"log_bytes": 22}
    (store.folder / names(2)[0]).unlink()
    assert Checkpoints(store.folder).load().step == 1


def test_after_a_fallback_the_damaged_one_does_not_count_as_kept(store):
    (store.folder / names(2)[1]).write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="step000000000002.json: .* has 7 bytes instead of"):
        assert store.load().step == 1
    store.save(3, tree(3))
    assert files(store) == names(1, 3)


def test_when_none_is_good_nothing_is_silently_started_anew(store):
    for path in store.folder.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(
        CheckpointError, match=r"step0*2.json: file .* is missing; step0*1.json: .* start again"
    ):
        store.load()


def test_every_corruption_is_noticed_and_named(store):
    """Bit flips, cuts, tails and swapped bytes anywhere in the newest checkpoint: the older one is used."""
    chance = random.Random(0)
    originals = {name: (store.folder / name).read_bytes() for name in names(2)}
    for _ in range(400):
        name = chance.choice(list(originals))
        content = bytearray(originals[name])
        place = chance.randrange(len(content))
        kind = chance.choice(["flip", "cut", "tail", "zero"])
        if kind == "flip":
            content[place] ^= 1 << chance.randrange(8)
        elif kind == "cut":
            del content[place:]
        elif kind == "tail":
            content += chance.randbytes(1 + chance.randrange(9))
        else:
            content[place : place + 8] = bytes(len(content[place : place + 8]))
        if bytes(content) == originals[name]:
            continue
        (store.folder / name).write_bytes(content)
        step, warning = load_step(store.folder)
        assert step == 1, (name, kind, place)
        assert "step000000000002" in warning
        (store.folder / name).write_bytes(originals[name])
    assert load_step(store.folder) == (2, "")


def test_left_over_temporary_and_orphaned_files_are_removed(store):
    store.load()
    for name in (".step000000000009.json.tmp", "step000000000009.safetensors", ".tmpAb3dE9"):
        (store.folder / name).write_bytes(b"half")
    store.save(3, tree(3))
    assert files(store) == names(2, 3)


# Failures while saving


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("nth", range(4))
def test_a_failing_disk_leaves_the_earlier_checkpoints(store, monkeypatch, call, nth):
    store.load()
    real, count = getattr(os, call), iter(range(100))

    def failing(*arguments):
        if next(count) == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    monkeypatch.setattr(dcem_lab.runs.files.os, call, failing)
    try:
        store.save(3, tree(3))
    except CheckpointError as error:
        assert "No space left on device" in str(error)
        assert "step000000000002.json is intact" in str(error)
    monkeypatch.undo()
    step, warning = load_step(store.folder)
    assert (step in (2, 3), warning) == (True, "")
    assert not list(store.folder.glob(".*"))
    store.save(4, tree(4))
    assert load_step(store.folder) == (4, "")


def test_a_file_size_limit_of_the_kernel(store):
    store.load()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(
            CheckpointError, match=r"step 3 could not be saved .* step000000000002.json is intact"
        ):
            store.save(3, {"w": torch.zeros(1000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(store) == names(1, 2)
    assert load_step(store.folder) == (2, "")


def test_a_read_only_folder():
    with tempfile.TemporaryDirectory() as name, as_nobody(name):
        store = Checkpoints(Path(name, "checkpoints"))
        store.save(2, tree(2))
        store.folder.chmod(0o555)
        with pytest.raises(
            CheckpointError, match=r"Permission denied.*; the one in step000000000002.json is intact"
        ):
            store.save(3, tree(3))
        assert files(store) == names(2)
        assert load_step(store.folder) == (2, "")
        store.folder.chmod(0o755)


@contextmanager
def as_nobody(folder: str) -> Iterator[None]:
    """Without root's power to write everywhere, where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


# Files from elsewhere


def forge(folder: Path, body: dict[str, object]) -> None:
    """A manifest of step 2 with a correct seal."""
    (folder / names(2)[0]).write_bytes(seal(body))


def forge_data(folder: Path, content: bytes) -> None:
    """A data file for step 2 whose manifest vouches for it."""
    (folder / names(2)[1]).write_bytes(content)
    body = unseal((folder / names(2)[0]).read_bytes())
    entry = {"file": names(2)[1], "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forge(folder, {**body, "tensors": entry})


def safetensors_file(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


HUGE = 1 << 50
LIES = {
    "pickle": b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.",
    "zip": b"PK\x03\x04" + bytes(100),
    "empty": b"",
    "header longer than the file": safetensors_file({}, length=HUGE),
    "header of almost 2^64 bytes": safetensors_file({}, length=2**64 - 1),
    "huge tensor": safetensors_file({"w": {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 4 * HUGE]}}),
    "huge shape, small data": safetensors_file(
        {"w": {"dtype": "F32", "shape": [HUGE, HUGE], "data_offsets": [0, 4]}}, bytes(4)
    ),
    "overlapping": safetensors_file(
        {
            "w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            "v": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        },
        bytes(4),
    ),
    "negative offsets": safetensors_file(
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, bytes(4)
    ),
    "hole": safetensors_file({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, bytes(8)),
    "unknown dtype": safetensors_file({"w": {"dtype": "PY", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "deep header": struct.pack("<Q", 40000) + b"[" * 20000 + b"]" * 20000,
    "other tensors": safetensors_file(
        {"v": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_lying_data_is_refused(store, lie, monkeypatch):
    monkeypatch.chdir(store.folder)
    forge_data(store.folder, LIES[lie])
    step, warning = load_step(store.folder)
    assert step == 1
    assert "step000000000002.json" in warning
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/b", "..", ".hidden", "", "a\0b", 3, None, ["x"], "link", "pipe"]
)
def test_names_stay_inside_the_folder(store, name):
    secret = store.folder.parent / "secret"
    secret.write_bytes((store.folder / names(2)[1]).read_bytes())
    (store.folder / "link").symlink_to(secret)
    os.mkfifo(store.folder / "pipe")
    body = unseal((store.folder / names(2)[0]).read_bytes())
    forge(store.folder, {**body, "tensors": {**body["tensors"], "file": name}})
    step, warning = load_step(store.folder)
    assert step == 1
    assert "file name" in warning or "regular file" in warning


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"step": "2"},
        {"step": 7},
        {"notes": []},
        {"tensors": None},
        {"tensors": []},
        {"tree": {"$": "code", "value": "__import__('os').system('touch pwned')"}},
        {"tree": {"_target_": "os.system", "command": "touch pwned"}},
    ],
)
def test_manifests_that_are_sealed_but_wrong(store, change, monkeypatch):
    monkeypatch.chdir(store.folder)
    body = unseal((store.folder / names(2)[0]).read_bytes())
    forge(store.folder, {**body, **change})
    step, warning = load_step(store.folder)
    assert step == 1
    assert "step000000000002.json" in warning
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"3", b"[" * 100000, b"\xff\xfe", b'{"sha256": "x"}']
)
def test_manifests_that_are_not_manifests(store, content):
    (store.folder / names(2)[0]).write_bytes(content)
    assert load_step(store.folder)[0] == 1


def test_a_manifest_of_gigabytes_is_not_read(store):
    path = store.folder / names(2)[0]
    with path.open("r+b") as file:
        file.truncate(1 << 33)  # sparse: takes no disk
    step, warning = load_step(store.folder)
    assert (step, "larger than 16 MiB" in warning) == (1, True)


def test_loading_leaves_the_file_alone(store):
    """What is loaded may be mapped from the file; writing to it must not reach the disk."""
    before = (store.folder / names(2)[1]).read_bytes()
    store.load().tree["w"].fill_(7)
    assert (store.folder / names(2)[1]).read_bytes() == before

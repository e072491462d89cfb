"""kill -9 at random moments and inside saves: no checkpoint is lost, every resume is bit-identical.

The test starts this file as a program of its own, which forks a training process for every kill.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

KILLS = 16
UPDATES = 10


def test_killed_runs_end_as_if_nothing_had_happened(tmp_path):
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path), str(KILLS)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["kills"] >= KILLS
    assert outcome["inside a save"] >= KILLS // 3
    assert outcome["different"] == []


def main(folder: Path, kills: int) -> dict[str, object]:
    import torch

    from toy.experiment import Config

    torch.set_num_threads(1)
    config = Config(updates=UPDATES, save_every=0.0)
    train(folder / "unbroken", config)  # here, so that children find every module imported
    expected = digest(folder / "unbroken")
    began = time.monotonic()
    os.waitpid(start(folder / "timed", config), 0)
    duration = time.monotonic() - began
    chance = random.Random(0)
    outcome = {"kills": 0, "inside a save": 0, "different": []}
    trial = 0
    while outcome["kills"] < kills:
        trial += 1
        broken = folder / f"broken{trial}"
        while True:
            inside = chance.random() < 0.5
            child = start(broken, config, die_at=chance.randrange(1, 60) if inside else None)
            if not inside:
                time.sleep(chance.random() * duration)
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            if not os.WIFSIGNALED(status):
                assert os.waitstatus_to_exitcode(status) == 0, "a resumed run failed"
                break
            outcome["kills"] += 1
            outcome["inside a save"] += inside
        if digest(broken) != expected:
            outcome["different"].append(broken.name)
    return outcome


def start(folder: Path, config: object, die_at: int | None = None) -> int:
    """A process that trains; with `die_at` it kills itself at that file operation of its saves."""
    child = os.fork()
    if child:
        return child
    try:
        os.dup2(os.open(folder.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        if die_at is not None:
            die_in_a_save(die_at)
        train(folder, config)
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def train(folder: Path, config: object) -> None:
    from dcem.runs import Run
    from toy.experiment import run

    with Run(folder, config, tensorboard=False) as handle:
        run(config, handle)


def die_in_a_save(nth: int) -> None:
    """SIGKILL before the nth fsync, rename or removal, or in the middle of writing the tensors."""
    import safetensors.torch

    operations = iter(range(1, 10**9))

    def deadly(call, before_death=lambda *_: None):
        def wrapped(*arguments, **options):
            if next(operations) == nth:
                before_death(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapped

    for name in ("fsync", "replace", "unlink"):
        setattr(os, name, deadly(getattr(os, name)))
    save_file = safetensors.torch.save_file

    def half(tensors, path):
        save_file(tensors, path)
        os.truncate(path, os.stat(path).st_size // 2)

    safetensors.torch.save_file = deadly(save_file, half)


def digest(folder: Path) -> str:
    """Of the whole state at the end and of the log, without its seconds."""
    from dcem.runs import load_checkpoint, read_record, read_records
    from dcem.runs.tree import encode

    assert read_record(folder)["status"] == "finished"
    checkpoint = load_checkpoint(folder)
    encoded, tensors = encode(checkpoint.tree)
    rows = [{**row, "seconds": 0} for row in read_records(folder / "log.jsonl")]
    text = json.dumps([checkpoint.step, encoded, rows]).encode()
    return hashlib.sha256(
        text + b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))
    ).hexdigest()


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))

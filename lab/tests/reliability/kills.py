"""kill -9 at random moments and inside saves: no checkpoint is lost, every resume ends bit for bit the same.

A training process is forked for every kill, so this must run in a process without threads of its own.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from reliability.outcome import Outcome
from reliability.training import TOY, digest, tiny, train


def measure(count: int, folder: Path) -> Outcome:
    return kill(TOY, tiny(TOY, updates=10, save_every=0.0), count, folder)


def measure_planet(count: int, folder: Path) -> Outcome:
    """The same for the agent with its replay buffer and its environments in mid-episode."""
    loop = replace(tiny("planet").loop, env_steps=2_000, eval_every=2_000, save_every=0.2)
    return kill("planet", tiny("planet", loop=loop), count, folder)


def kill(experiment: str, config: Any, count: int, folder: Path) -> Outcome:
    torch.set_num_threads(1)
    train(experiment, folder / "unbroken", config)  # here, so that children find every module imported
    expected = digest(folder / "unbroken")
    began = time.monotonic()
    os.waitpid(start(experiment, folder / "timed", config), 0)
    duration = time.monotonic() - began
    chance = random.Random(0)
    kills = inside_a_save = trial = 0
    failures = []
    while kills < count:
        trial += 1
        broken = folder / f"broken{trial}"
        status = -1
        while status < 0:
            inside, harm = chance.random() < 0.5, kills < count
            die_at = chance.randrange(1, 60) if inside and harm else None
            child = start(experiment, broken, config, die_at)
            if harm and not inside:
                time.sleep(chance.random() * duration)
                os.kill(child, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            kills += status < 0
            inside_a_save += status < 0 and inside
        if status > 0:
            failures.append(f"{broken.name}: a resumed run failed, see {broken.name}.txt")
        elif digest(broken) != expected:
            failures.append(f"{broken.name}: the resumed run ended differently")
    notes = f"{inside_a_save} inside a save; {trial} runs of {experiment}, each resumed until its end"
    return Outcome(kills, failures, notes=notes)


def start(experiment: str, folder: Path, config: Any, die_at: int | None = None) -> int:
    """A process that trains; with `die_at` it kills itself at that file operation of its saves."""
    child = os.fork()
    if child:
        return child
    try:
        os.dup2(os.open(folder.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        if die_at is not None:
            die_in_a_save(die_at)
        train(experiment, folder, config)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def die_in_a_save(nth: int) -> None:
    """SIGKILL before the nth fsync, rename or removal, or in the middle of writing the tensors."""
    import safetensors.torch

    operations = iter(range(1, 10**9))

    def deadly(call: Any, before_death: Any = lambda *_: None) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if next(operations) == nth:
                before_death(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapped

    for name in ("fsync", "replace", "unlink"):
        setattr(os, name, deadly(getattr(os, name)))
    save_file = safetensors.torch.save_file

    def half(tensors: Any, path: Any) -> None:
        save_file(tensors, path)
        os.truncate(path, os.stat(path).st_size // 2)

    safetensors.torch.save_file = deadly(save_file, half)

"""Settings out of range, of the wrong type, or at odds with each other: refused at once, the field named."""

from __future__ import annotations

import io
import os
import random
import re
import resource
import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from operator import itemgetter
from pathlib import Path

from dcem_lab import cli, experiments
from dcem_lab.commands.values import type_text
from dcem_lab.runs.settings import known_settings
from reliability.outcome import Outcome
from reliability.training import dcem

COMMAND_EVERY = 40
COMBINATIONS = [  # experiment, words, the field to be named
    ("regression", ["n_samples=5", "n_elite=6"], "n_elite"),
    ("regression", ["n_iters=3", "n_iters_spread=3"], "n_iters_spread"),
    ("regression", ["n_iters=50"], "eval_iters"),
    ("cartpole", ["n_samples=5", "n_elite=6"], "n_elite"),
    ("cartpole", ["device=tpu"], "device"),
    ("cartpole-grid", ["taus=[0,1]"], "taus"),
    ("cartpole-grid", ["latent_dims=[2,0]"], "latent_dims"),
    ("cartpole-baselines", ["experts=[nobody]"], "experts"),
    ("planet", ["planner.samples=5", "planner.elites=6"], "planner.elites"),
    ("planet", ["n_envs=2", "n_workers=3"], "n_workers"),
    ("planet", ["length=5"], "length"),
    ("planet", ["model.loss=mse"], "predict_std"),
    ("planet", ["task=cheetah-fly"], "task"),
    ("planet", ["task=Nothing-v1"], "task"),
    ("planet", ["model.angles=[99]"], "model.angles"),
    ("planet", ["seed=4294967296"], "seed"),
]
WRONG = {  # by what a field takes: values that nobody takes
    "int": ["1.5", "abc", "null", "nan", "[1]", "-7", "99999999999999999999"],
    "float": ["abc", "null", "nan", "inf", "-inf", "[1.0]", "-7"],
    "true or false": ["maybe", "1.5", "null"],
    "int or null": ["1.5", "abc", "0", "-7"],
    "float or null": ["abc", "nan", "inf", "-7"],
    "[int, ...]": ["3", "[x]", "[1.5]", "[-7]"],
    "[float, ...]": ["3", "[x]", "[nan]", "[-7]"],
}


def measure(count: int, folder: Path) -> Outcome:
    """Every refusal in this process, and one in forty also as a command of its own, which is slower."""
    chosen = cases()
    random.Random(0).shuffle(chosen)
    chosen = (COMBINATIONS + chosen)[:count]
    failures, slowest = [], 0.0
    before = Path.cwd()
    os.chdir(folder)
    try:
        for number, (experiment, words, field) in enumerate(chosen):
            shown, code, seconds = in_process(experiment, words)
            if number % COMMAND_EVERY == COMMAND_EVERY - 1:
                shown, code, seconds = min(
                    (as_command(experiment, words) for _ in range(3)), key=itemgetter(2)
                )
            slowest = max(slowest, seconds)
            sentence = f"dcem train: .*{re.escape(field)}"
            if code != 2 or not re.match(sentence, shown) or any(folder.iterdir()):
                failures.append(f"{experiment} {' '.join(words)}: exit code {code}: {shown}")
    finally:
        os.chdir(before)
    own = len(chosen) // COMMAND_EVERY
    notes = f"{own} of them as commands, start-up included: CPU seconds, best of three"
    return Outcome(len(chosen), failures, slowest, notes)


def cases() -> list[tuple[str, list[str], str]]:
    """A wrong value for every field of every experiment."""
    return [
        (experiment, [f"{field}={value}"], field)
        for experiment in experiments.EXPERIMENTS
        for field, known in known_settings(experiments.load(experiment).Config).items()
        for value in _wrong(field, type_text(known.type))
    ]


def _wrong(field: str, kind: str) -> Iterator[str]:
    if field == "seeds" and kind == "[int, ...]":
        yield "[-7]"
    yield from WRONG.get(kind, [])


def in_process(experiment: str, words: list[str]) -> tuple[str, int, float]:
    shown = io.StringIO()
    began = time.monotonic()
    with redirect_stderr(shown):
        code = cli.main(["train", experiment, *words])
    return shown.getvalue(), code, time.monotonic() - began


def as_command(experiment: str, words: list[str]) -> tuple[str, int, float]:
    """With CPU seconds, since others may be using this machine."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = dcem("train", experiment, *words)
    _, shown = process.communicate(timeout=300)  # against a hang
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    return shown, process.returncode, seconds

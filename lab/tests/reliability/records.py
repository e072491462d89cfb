"""run.json, log.jsonl and the plan of a sweep, mutated: a sentence or a row `damaged`, nothing else."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

from dcem_lab import cli
from reliability.outcome import Outcome
from reliability.training import TOY, tiny, train

ESCAPES = "\x1b[2J\x1b]0;title\x07\r\n\x9b31m\u202e\ud800"


def measure(count: int, folder: Path) -> Outcome:
    """Each mutation of one file is met by three commands; a run that is still a run may go on."""
    chance = random.Random(0)
    runs = folder / "runs"
    mutated, plan = runs / "mutated", runs / ".sweep" / "runs.json"
    commands = {
        "sweep-status": [str(runs)],
        "eval": [str(mutated)],
        "train": [TOY, "preset=tiny", f"run_dir={mutated}", "tensorboard=false"],
    }
    train(TOY, runs / "intact", tiny(TOY))
    record = runs / "intact" / "run.json"
    record.write_text(record.read_text().replace('"finished"', '"interrupted"'))  # so that it is resumed
    plan.parent.mkdir()
    failures, codes = [], Counter[str]()
    for trial in range(count):
        plan.write_text('["planned/seed0"]\n')
        shutil.rmtree(mutated, ignore_errors=True)
        shutil.copytree(runs / "intact", mutated)
        path = chance.choice([*[mutated / "run.json"] * 3, mutated / "log.jsonl", plan])
        what = mutate(path, chance)
        for name, words in commands.items():
            problem, code = meet(name, *words)
            codes[f"{name} {code}"] += 1
            if problem:
                failures.append(f"try {trial}, {path.name}, {what}: dcem {name}: {problem}")
    refused, resumed = codes["train 2"], codes["train 0"]
    notes = f"each met by {', '.join(commands)}: {refused} not resumed, {resumed} still good enough"
    return Outcome(count, failures, notes=notes)


def meet(name: str, *words: str) -> tuple[str, int]:
    """What is wrong with how a command takes it, and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    try:
        # What a disk takes long for is measured elsewhere.
        with redirect_stdout(out), redirect_stderr(err), mock.patch("os.fsync"):
            code = cli.main([name, *words])
    except Exception as error:
        return f"{type(error).__name__} {error}", -1
    if not (out.getvalue() + err.getvalue()).replace("\n", "").isprintable():
        return "an escape sequence was printed", code
    if "Traceback" in err.getvalue():
        return f"a traceback that ends in {err.getvalue().splitlines()[-2]}", code
    if code == 2 and len(err.getvalue().splitlines()) != 1:
        return f"not one sentence: {err.getvalue()}", code
    if name == "sweep-status" and (code != 0 or "\nintact " not in out.getvalue()):
        return f"exit code {code}, other runs hidden: {out.getvalue()}{err.getvalue()}", code
    return "", code


# Mutations


def mutate(path: Path, chance: random.Random) -> str:
    """Change the file; returns what was done."""
    kind = chance.choice(["value", "value", "value", "key", "missing", "bytes", "deep", "whole"])
    if path.suffix == ".jsonl":
        lines = path.read_bytes().splitlines(keepends=True)
        number = chance.randrange(len(lines))
        lines[number] = changed(lines[number], kind, chance) + b"\n"
        path.write_bytes(b"".join(lines))
    else:
        path.write_bytes(changed(path.read_bytes(), kind, chance))
    return kind


def changed(text: bytes, kind: str, chance: random.Random) -> bytes:
    if kind == "bytes":
        place, length = chance.randrange(len(text)), chance.randrange(9)
        return text[:place] + chance.randbytes(length) + text[place + length :]
    if kind == "deep":
        return b"[" * chance.choice([30, 900, 100_000]) + b"]" * 30
    if kind == "whole":
        return json.dumps(strange(chance)).encode()
    body = json.loads(text)
    parent, key = chance.choice(places(body))
    if kind == "missing":
        del parent[key]
    elif kind == "key" and isinstance(parent, dict):
        parent[f"{key}{ESCAPES}"] = parent.pop(key)
    else:
        parent[key] = strange(chance, parent[key])
    return json.dumps(body).encode()


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every value of a tree, by what holds it and its key or index there."""
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    return [place for key in keys for place in [(tree, key), *places(tree[key])]]


def strange(chance: random.Random, value: object = None) -> object:
    """A value of another type or range, or the same in a wrapping."""
    tree: object = value
    for _ in range(chance.choice([25, 300])):
        tree = [tree]
    numbers = [0, -1, 0.5, 1e308, 10**400, float("nan"), float("inf"), 2**63]
    texts = ["", "3", ESCAPES, "x" * 10_000, "../../elsewhere", "/etc/passwd", "finished", "running", "nul\0"]
    others = [None, True, [], {}, [[]], {"a": ESCAPES}, [value], {"value": value}, str(value), tree]
    return chance.choice(chance.choice([numbers, texts, others]))

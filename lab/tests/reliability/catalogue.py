"""Everything that is measured: how, how often in the tests, and how often for the published table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reliability import (
    bad_configs,
    bad_values,
    corruptions,
    disks,
    drift,
    early_stops,
    fuzz,
    kills,
    payloads,
    readers,
    records,
    repeats,
    restores,
    solves,
    stops,
    torchrl,
)
from reliability.outcome import Outcome


@dataclass(frozen=True)
class Measurement:
    """What to `measure(count, folder)`: with a `short` count in every test run, and in full.

    `alone` says that it needs a process of its own, `cuda` that it needs such a device. The slowest try of
    the full measurement may take `limit` seconds; a busy machine fails no short one.
    """

    what: str
    target: str
    measure: Callable[[int, Path], Outcome]
    short: int
    full: int
    alone: bool = False
    cuda: bool = False
    limit: float = math.inf


CATALOGUE = {
    "kills": Measurement(
        "`kill -9` at random times during training and saving",
        "no checkpoint lost, every resume bit-identical",
        kills.measure, short=12, full=60, alone=True,
    ),
    "kills-planet": Measurement(
        "the same for an agent with replay buffer and environments in mid-episode",
        "no checkpoint lost, every resume bit-identical",
        kills.measure_planet, short=0, full=10, alone=True,
    ),
    "stops": Measurement(
        "SIGTERM at random times during `dcem train`",
        "saved, at most one step lost, at most 10 s, exit code 75",
        stops.measure, short=2, full=20, limit=10.0,
    ),
    "ctrl-c": Measurement(
        "Ctrl-C while `dcem train` starts up",
        "a one-line message, no traceback, exit code 75",
        early_stops.measure, short=3, full=40,
    ),
    "readers": Measurement(
        "the reader of stdout and stderr disappears at a random time, or never existed",
        "exit code 0; weights, other state and log unchanged",
        readers.measure, short=3, full=12,
    ),
    "disks": Measurement(
        "saving to a full or read-only disk",
        "the error names the cause; the previous checkpoint stays intact",
        disks.measure, short=20, full=200,
    ),
    "corruptions": Measurement(
        "truncated, grown, bit-flipped and overwritten files",
        "every corruption is reported, none is loaded",
        corruptions.measure, short=200, full=2000,
    ),
    "payloads": Measurement(
        "malicious files and command lines (pickles, zip paths, config targets, links, lying headers)",
        "none executed, none reads or writes outside its folder, none takes 256 MiB",
        payloads.measure, short=99, full=99, alone=True,
    ),
    "records": Measurement(
        "mutated `run.json`, `log.jsonl` and sweep plans (types, ranges, nesting, escape sequences)",
        "an error message or a row `damaged`; no other exception, no escape sequence printed",
        records.measure, short=200, full=1000,
    ),
    "bad-configs": Measurement(
        "bad configs",
        "refused in less than 2 s each; the error names the field; nothing written",
        bad_configs.measure, short=39, full=200, limit=2.0,
    ),
    "bad-values": Measurement(
        "NaN and ±inf in 0% to 100% of an objective's values",
        "bad samples get zero weight, other rows are bit-identical, rows without a finite value are named",
        bad_values.measure, short=41, full=1000,
    ),
    "fuzz": Measurement(
        "random combinations of solver, distribution, bounds, noise, backward mode, dtype, NaN regions, "
        "penalties and restarts",
        "same solution in every mode, batch equals loop, bounds hold, gradients finite, in float64 correct",
        fuzz.measure, short=60, full=20_000,
    ),
    "repeats": Measurement(
        "the same seed twice, every experiment's tiny preset",
        "equal SHA-256 of weights, of all other state, and of the log (CPU)",
        repeats.measure, short=2, full=99,
    ),
    "drift": Measurement(
        "the same on a GPU",
        "differences are published",
        drift.measure, short=0, full=99, cuda=True,
    ),
    "solves": Measurement(
        "solves with gradients in one process",
        "resident memory grows less than 1% after warm-up, no NaN",
        solves.measure, short=2_000, full=100_000, alone=True,
    ),
    "restores": Measurement(
        "environments saved and restored in mid-episode",
        "bit-identical continuations",
        restores.measure, short=200, full=1000,
    ),
    "torchrl": Measurement(
        "advantage estimates and the PPO loss against torchrl, on random batches",
        "differences of at most 1e-5",
        torchrl.measure, short=0, full=1000,
    ),
}  # fmt: skip

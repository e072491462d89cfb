"""Argmin layers beside each other: gradients, answers, time, memory and failures on five problems.

Every contender lives in an environment and a process of its own. A run renews its own rows of the tables.
"""

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402

import results  # noqa: E402
import truth  # noqa: E402
from energies import ENERGIES  # noqa: E402
from environments import InstallError  # noqa: E402
from machine import machine  # noqa: E402
from workers import Worker, WorkerError  # noqa: E402

# The modules of contenders/, and the environment of each. The times of the first are the ratios' 1.
MODULES = {
    "ours": "ours",
    "theseus": "theseus",
    "torchopt": "torchopt",
    "cvxpylayers": "cvxpylayers",
    "mpc_pytorch": "mpc_pytorch",
    "jax_program": "jax_program",
}
BATCHES = (1, 64)
SLOW = 2e3  # milliseconds of a call after which one round has to do


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", nargs="+", choices=ENERGIES, default=list(ENERGIES))
    parser.add_argument("--modules", nargs="+", choices=MODULES, default=list(MODULES))
    parser.add_argument("--count", type=int, default=1000, help="instances of every problem")
    parser.add_argument("--rounds", type=int, default=7, help="of timing")
    parser.add_argument("--seconds", type=float, default=0.2, help="of timing a round, for each contender")
    parser.add_argument("--limit", type=float, default=60, help="CPU seconds of judging a contender")
    parser.add_argument("--without", nargs="+", default=[], metavar="CONTENDER", help="leave these out")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers, facts = start(args.modules, stack)
        for name in args.problems:
            begun, about = time.perf_counter(), machine(threads=1)
            given = truth.instances(name, args.count)
            about["error of the true gradient"] = truth.disagreement(name, given)
            torch.save(vars(given), folder / f"{name}.pt")
            rows = measure({"problem": name, "file": str(folder / f"{name}.pt")}, workers, args)
            about |= {"rounds": args.rounds, "wall seconds": round(time.perf_counter() - begun)} | facts
            results.put(args.out, rows)
            results.note(args.out, name, about)
    results.publish(args.out)


def start(modules: list[str], stack: ExitStack) -> tuple[dict[str, Worker], dict[str, Any]]:
    """A worker for every module, and what is to be said of them: versions, or why there is none."""
    workers, versions, missing = {}, {}, {}
    for module in modules:
        try:
            worker = stack.enter_context(_worker(module))
            versions[module] = worker.ask("versions")
            workers[module] = worker
        except (InstallError, WorkerError) as error:
            missing[module] = str(error)
    return workers, {"versions": versions, "not installed": missing}


def _worker(module: str) -> Worker:
    return Worker(MODULES[module], threads=1, module=f"contenders.{module}", folder=HERE)


def measure(given: dict[str, str], workers: dict[str, Worker], args: argparse.Namespace) -> list[results.Row]:
    """All contenders on one problem: answers, times in turn, and memory."""
    rows: dict[str, results.Row] = {}
    where: dict[str, str] = {}
    for module, worker in workers.items():
        for label in worker.ask("labels", problem=given["problem"])["labels"]:
            if label in args.without:
                continue
            where[label] = module
            try:
                rows[label] = worker.ask("judge", seconds=args.limit, label=label, **given)
            except WorkerError as error:
                rows[label] = {"errors": str(error)}
            print(given["problem"], label, rows[label], flush=True)
    for batch in BATCHES:
        rounds = times(given | {"batch": batch}, workers, where, args)
        first = next(iter(rounds.values()))
        for label, ms in rounds.items():
            if ms:
                rows[label][f"ms, B={batch}"] = median(ms)
                rows[label][f"ratio, B={batch}"] = median(a / b for a, b in zip(ms, first, strict=False))
    for label, module in where.items():
        if f"ms, B={max(BATCHES)}" in rows[label]:
            rows[label] |= workers[module].ask("memory", batch=max(BATCHES), label=label, **given)
    return [{"problem": given["problem"], "contender": label} | row for label, row in rows.items()]


def times(
    given: dict[str, Any], workers: dict[str, Worker], where: dict[str, str], args: argparse.Namespace
) -> dict[str, list[float]]:
    """CPU milliseconds of a call, round by round: what slows the machine for a while slows them all."""
    found: dict[str, list[float]] = {label: [] for label in where}
    for turn in range(-1, args.rounds):  # the first is for compilers, and not kept
        for label, ms in found.items():
            if turn > 0 and (not ms or ms[-1] > SLOW):
                continue
            try:
                worker = workers[where[label]]
                reply = worker.ask("time", seconds=args.seconds * (turn >= 0), label=label, **given)
            except WorkerError:
                continue
            if turn >= 0:
                ms.append(reply["ms"])
    return found


if __name__ == "__main__":
    main()

"""Speed, memory and correctness compared with other packages, in one run: `dcem bench`.

Every contender lives in a process and an environment of its own. A case is timed in rounds; in each round
every contender has its turn, so that what slows the machine down for a while slows them all.
"""

import argparse
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tables
from environments import PEERS, ROOT, InstallError
from machine import machine
from suite import TABLES, Case, Contender, Table
from tables import Row
from workers import Worker, WorkerError

TITLE = (
    "# CPU benchmarks\n\nMedians over interleaved rounds. A ratio is to the first contender of its case: the "
    "median of the ratios of each round, with their quartiles."
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="dcem bench", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds; writes to out/bench")
    parser.add_argument("--tables", nargs="+", choices=[t.name for t in TABLES], metavar="TABLE")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="seconds of timing per round and contender")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rounds = args.rounds or (3 if args.quick else 15)
    seconds = args.seconds or (0.05 if args.quick else 0.3)
    folder = args.out or (ROOT / "out/bench" if args.quick else ROOT / "benchmarks/results")
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [t for t in TABLES if not args.tables or t.name in args.tables]

    with ExitStack() as stack:
        workers, failures, versions = start(
            {c.environment for t in chosen for c in t.contenders}, args.threads, stack
        )
        facts = machine(args.threads) | {"rounds": rounds, "seconds": seconds, "versions": versions}
        pages = {}
        for table in chosen:
            rows = [
                row
                for case in table.cases
                for row in measure(table, case, workers, failures, rounds, seconds, args.threads)
            ]
            first = {case.label: next(r for r in rows if r.case == case.label) for case in table.cases}
            pages[table.name] = tables.write(folder, table, rows, first) + origin(facts)
            note(folder / "run.json", facts | {"not installed": failures}, table.name)
            print(pages[table.name], flush=True)
    tables.publish(folder / "tables.md", TITLE, pages)
    print(f"written to {folder}")


def start(
    environments: set[str], threads: int, stack: ExitStack
) -> tuple[dict[str, Worker], dict[str, str], dict[str, Any]]:
    """A worker for every environment; why not, for those that cannot be had; and their versions."""
    workers, failures, versions = {}, {}, {}
    for name in ["ours", *PEERS]:
        if name not in environments:
            continue
        try:
            worker = stack.enter_context(Worker(name, threads))
            versions[name] = worker.ask("versions")
            workers[name] = worker
        except (InstallError, WorkerError) as error:
            failures[name] = f"not installed: {error}"
            print(f"{name} {failures[name]}", flush=True)
    return workers, failures, versions


def measure(
    table: Table,
    case: Case,
    workers: dict[str, Worker],
    failures: dict[str, str],
    rounds: int,
    seconds: float,
    threads: int,
) -> list[Row]:
    """All contenders on one case: times in turn, then memory (in fresh processes) and correctness."""
    rows = {
        c.label: Row(case.label, c.label, failure=failures.get(c.environment, "")) for c in table.contenders
    }
    for index, name in enumerate(tables.PASSES):
        backward = index == 1
        for turn in range(rounds):
            for contender in rotated(table.contenders, turn):
                row = rows[contender.label]
                if row.failure or (backward and not contender.backward):
                    continue
                try:
                    worker = workers[contender.environment]
                    reply = worker.ask("time", contender.request(case), backward=backward, seconds=seconds)
                    row.ms.setdefault(name, []).append(reply["ms"])
                except WorkerError as error:
                    row.failure, row.ms = f"failed: {error}", {}
    for contender in table.contenders:
        row = rows[contender.label]
        if row.failure:
            continue
        try:
            row.figures |= figures(table, case, contender, workers[contender.environment], threads)
        except WorkerError as error:
            row.failure, row.ms = f"failed: {error}", {}
    return list(rows.values())


def rotated(contenders: tuple[Contender, ...], turn: int) -> tuple[Contender, ...]:
    """Another one goes first every round, so that none is always the one after the slowest."""
    cut = turn % len(contenders)
    return contenders[cut:] + contenders[:cut]


def figures(table: Table, case: Case, contender: Contender, worker: Worker, threads: int) -> dict[str, Any]:
    request = contender.request(case)
    found: dict[str, Any] = {}
    if table.memory:
        with Worker(contender.environment, threads) as fresh:
            found = fresh.ask("memory", request, backward=contender.backward)
    if contender.judged:
        found |= worker.ask("judge", request)
    if table.compare and contender.backward:
        found |= worker.ask("compare", request, reference=table.contenders[0].request(case))
    if table.differences:
        found |= worker.ask("differences", request)
    if contender.exact is not None:
        request = {**request, "problem": case.problem | {"dtype": "float64"}}
        reply = worker.ask("compare", request, reference={**request, "options": contender.exact})
        found["gradient error, exact top-k"] = reply["relative error"]
    return found


def note(path: Path, facts: dict[str, Any], table: str) -> None:
    """The facts of this run, and of every table which run it comes from: a run of some keeps the others."""
    known = json.loads(path.read_text()) if path.exists() else {}
    own = {key: facts[key] for key in ("date", "commit", "threads", "load before", "rounds", "versions")}
    origins = known.get("tables", {}) | {table: own}
    path.write_text(json.dumps(facts | {"tables": origins}, indent=2) + "\n")


def origin(facts: dict[str, Any]) -> str:
    packages = {k: v for group in facts["versions"].values() for k, v in group.items()}
    return (
        f"\n{facts['date']}, {facts['cpu']}, {facts['threads']} threads of {facts['cores']} cores, "
        f"load {facts['load before']} before the start, commit {facts['commit']}, {facts['rounds']} rounds. "
        + ", ".join(f"{name} {version}" for name, version in packages.items())
        + ".\n"
    )


if __name__ == "__main__":
    main()

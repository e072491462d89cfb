"""Optimisers on the 24 BBOB functions, and on many problems at once, beside peers.

Every contender lives in an environment and a process of its own. A run is renewed in the tables; the runs of
other optimisers, dimensions and budgets stay.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import many  # noqa: E402
import results  # noqa: E402
from environments import InstallError  # noqa: E402
from machine import machine  # noqa: E402
from scoring import FUNCTIONS  # noqa: E402
from workers import Worker, WorkerError  # noqa: E402

# The modules of contenders/, and the environment of each. A module knows its optimisers by name.
CONTENDERS = {
    "ours": "dcem",
    "pycma": "pycma",
    "evotorch": "evotorch",
    "scipy": "scipy",
    "nevergrad": "nevergrad",
}
MANY = {"problems": 1024, "dimension": 10, "budget": 10_000, "seed": 0}
# Of the problems, how many a contender takes: all in one call, or some, one at a time.
SOLVED = {"ours": MANY["problems"], "pycma": 16, "evotorch": 4, "scipy": 4, "nevergrad": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dimensions", nargs="+", type=int, default=[2, 5, 10, 20, 40])
    parser.add_argument(
        "--budget", nargs="+", type=int, default=[100, 1000], help="evaluations per dimension"
    )
    parser.add_argument("--instances", type=int, default=5)
    parser.add_argument("--draws", type=int, default=1, help="of the noise, for every instance")
    parser.add_argument("--functions", nargs="+", type=int, choices=FUNCTIONS, default=list(FUNCTIONS))
    parser.add_argument("--optimisers", nargs="+", help="by name, or by module: " + ", ".join(CONTENDERS))
    parser.add_argument("--many", action="store_true", help="only the case of many problems at once")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    args = parser.parse_args()
    if args.many:
        start, facts = time.perf_counter(), machine(threads=1)
        rows = many_problems(args.optimisers)
        results.put(args.out / "many.csv", rows, results.MANY, ("problem", "optimiser"))
        note(args.out, "many", facts | {"wall seconds": round(time.perf_counter() - start)})
    else:
        for module in CONTENDERS:
            with Contender(module) as contender:
                for optimiser in contender.chosen(args.optimisers):
                    start, facts = time.perf_counter(), machine(threads=1)
                    rows = list(contender.runs(optimiser, args))
                    facts |= contender.facts | {"wall seconds": round(time.perf_counter() - start)}
                    cases = [f"{n}-D, {b}" for n, b in product(args.dimensions, args.budget)]
                    results.put(args.out / "runs.csv", rows)
                    note(args.out, optimiser, dict.fromkeys(cases, facts))
                    print(f"{optimiser}: {len(rows)} runs in {facts['wall seconds']} s", flush=True)
        publish(results.read(args.out / "runs.csv"), args.out)


def note(folder: Path, name: str, facts: dict[str, Any]) -> None:
    """Add facts about runs to the record, at once: a run that is stopped later keeps its tables' origin."""
    record = folder / "run.json"
    known = json.loads(record.read_text()) if record.exists() else {}
    known[name] = known.get(name, {}) | facts
    record.write_text(json.dumps(known, indent=2) + "\n")


class Contender:
    """A module's worker. What fails, from the installation on, becomes the error of its rows."""

    def __init__(self, module: str):
        self._worker, self._failure = None, ""
        self.facts, self._optimisers, self._offers = {}, [module], list[str]()
        self._module = module
        try:
            self._worker = Worker(CONTENDERS[module], 1, f"contenders.{module}", HERE)
            self.facts = self._worker.ask("facts")
            self._optimisers, self._offers = self.facts.pop("optimisers"), self.facts.pop("offers")
        except (InstallError, WorkerError) as error:
            self._failure = f"not installed: {error}"
            print(f"{module} {self._failure}", flush=True)

    def chosen(self, names: list[str] | None) -> list[str]:
        """Its optimisers, or those named; the name of the module names them all."""
        every = names is None or self._module in names
        return [name for name in self._optimisers if every or name in names]

    def runs(self, optimiser: str, args: argparse.Namespace) -> Iterator[results.Row]:
        """A row for every function, dimension, instance, draw and budget."""
        problems = list(product(args.functions, range(1, args.instances + 1)))
        for dimension, budget, draw in product(args.dimensions, args.budget, range(args.draws)):
            size = {"optimiser": optimiser, "dimension": dimension, "budget": budget * dimension}
            if "solve_all" in self._offers:
                replies = self._attempt("solve_all", problems=problems, seed=draw, **size)
                replies = replies.get("runs", [replies] * len(problems))
            else:
                replies = [
                    self._attempt("solve", function=function, instance=instance, seed=seed, **size)
                    for function, instance in problems
                    for seed in [
                        100_000 * draw + 1_000 * function + instance
                    ]  # no two runs share their noise
                ]
            for (function, instance), reply in zip(problems, replies, strict=True):
                which = {"function": function, "instance": instance, "draw": draw, "budget": budget}
                yield _row(reply) | size | which

    def _attempt(self, do: str, **settings: Any) -> dict[str, Any]:
        try:
            return self.ask(do, **settings)
        except WorkerError as error:
            return {"error": str(error)}

    def ask(self, do: str, **settings: Any) -> dict[str, Any]:
        if self._worker is None or self._failure:
            raise WorkerError(self._failure)
        return self._worker.ask(do, **settings)

    def __enter__(self) -> "Contender":
        return self

    def __exit__(self, *error: object) -> None:
        if self._worker is not None:
            self._worker.__exit__(*error)


def _row(reply: dict[str, Any]) -> results.Row:
    if "error" in reply:
        return {"error": reply["error"], "reached": ""}
    return {
        "evaluations": reply["evaluations"],
        "share": f"{reply['share']:.4f}",
        "distance": f"{reply['distance']:.3g}",
        "seconds": f"{reply['seconds']:.3f}",
        "reached": " ".join(map(str, reply["reached"])),
    }


def many_problems(names: list[str] | None) -> list[results.Row]:
    """Ours solves all problems in one call; peers some of them, and their time for all is extrapolated."""
    rows = []
    for module, solved in SOLVED.items():
        with Contender(module) as contender:
            for optimiser, problem in product(contender.chosen(names), many.PROBLEMS):
                row: results.Row = {"problem": problem, "optimiser": optimiser, "solved": solved}
                try:
                    reply = contender.ask("many", optimiser=optimiser, problem=problem, solved=solved, **MANY)
                    row |= {
                        "seconds": f"{reply['seconds']:.3g}",
                        "seconds for all": f"{reply['seconds'] * MANY['problems'] / solved:.3g}",
                        "median": f"{median(reply['best']):.3g}",
                        "worst": f"{max(reply['best']):.3g}",
                    }
                except WorkerError as error:
                    row |= {"error": str(error)}
                rows.append(row)
                print(row, flush=True)
    return rows


def publish(table: list[results.Row], folder: Path) -> None:
    """The summary and the curves of all runs there are, and the picture where matplotlib is."""
    overview = results.summary(table)
    results.write(folder / "summary.csv", list(overview[0]), overview)
    compared = results.ratios(table)
    if compared:
        results.write(folder / "ratios.csv", list(compared[0]), compared)
    curves = results.curves(table)
    results.write(folder / "ecdf.csv", list(curves[0]), curves)
    try:
        results.draw(curves, folder)
    except ImportError:
        print("no picture: matplotlib is not installed", flush=True)
    print((folder / "summary.csv").read_text())


if __name__ == "__main__":
    main()

"""What compiled solves take to start, with and without what torch keeps of earlier processes.

    python benchmarks/compiling.py

Seconds of the first call and of the first with a second batch size, in a fresh process each, in which the
same solve has run uncompiled before. Rows go to results/compiling.csv.
"""

import argparse
import csv
import os
import tempfile
from pathlib import Path

from machine import machine
from peers.compiled import METHODS
from workers import Worker

RESULTS = Path(__file__).parent / "results" / "compiling.csv"
TITLES = {
    "quadratic": "DCEM on a quadratic, with gradients",
    "mppi": "MPPI on a double integrator",
    "mpc": "plans through a network, with gradients",
}
BATCHES = (1, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    facts = machine(args.threads)
    about = {name: facts[name] for name in ("cpu", "threads", "load before", "date", "commit")}
    rows = []
    for method in args.methods:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder  # where torch keeps what it compiled
            for cache in ("empty", "of an earlier process"):
                with Worker("ours", args.threads, module="peers.compiled") as worker:
                    torch = worker.ask("versions")["torch"]
                    found = worker.ask("start", method=method, batches=BATCHES)
                rows.append(
                    {"case": TITLES[method], "cache": cache}
                    | {name: f"{value:.3g}" for name, value in found.items()}
                    | about
                    | {"torch": torch}
                )
                print(*rows[-1].values(), sep="  ", flush=True)
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()

"""Speed on one GPU, beside what the machine can do at most: `python benchmarks/gpu/run.py --out FOLDER`."""

import argparse
import datetime
import json
import platform
import subprocess
import time
from pathlib import Path
from shutil import which
from typing import Any

import selection
import torch
import triton
import work
from clock import ceilings
from pages import Table, grid, heading, markdown, write

from dcem_lab.runs.files import write_csv

MAKERS = {
    "lml": work.lml,
    "topk": selection.operators,
    "dcem": work.solve,
    "plan": work.plan,
    "update": work.update,
    "value": work.value,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="dcem bench --gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="unknown", help="the commit measured, for the record")
    parser.add_argument("--only", choices=MAKERS, help="one table instead of all, without the targets")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    torch.manual_seed(0)
    rates = ceilings()
    tables: dict[str, Table] = {}
    for make in MAKERS.values() if args.only is None else [MAKERS[args.only]]:
        table = make()
        tables[table.name] = table
        write(args.out, table, rates)
        print(f"{table.name}: done after {time.perf_counter() - start:.0f} s", flush=True)
    facts = machine() | {"commit": args.commit, "rates": rates, "seconds": time.perf_counter() - start}
    (args.out / "run.json").write_text(json.dumps(facts, indent=2) + "\n")
    pages = [heading(facts), *(markdown(table, rates) for table in tables.values())]
    summary = []
    if "dcem" in tables:
        beside = ["case", "what", "dcem, ms", "objective, ms", "overhead, ms", "ratio"]
        summary.append(f"## Overhead\n\n{grid(beside, overhead(tables['dcem']))}\n")
    if args.only is None:
        header, goals = ["what", "measured", "limit", "holds"], targets(tables)
        write_csv(args.out / "targets.csv", header, goals, digits=6)
        summary.append(f"## Targets\n\n{grid(header, goals)}\n")
    (args.out / "tables.md").write_text("\n".join([*pages, *summary]))
    print("\n".join([pages[0], *summary]))


def overhead(table: Table) -> list[list[Any]]:
    """What a captured solve costs beside the captured objective alone, with the fused kernels and without."""
    rows: list[list[Any]] = []
    for case in dict.fromkeys(row.case for row in table.rows):
        first = next(row.what for row in table.rows if row.case == case)
        bare = table.ms(case, "the objective alone, captured")
        for what in (first, work.SEPARATE):
            ours = table.ms(case, what)
            rows.append([case, what, ours, bare, ours - bare, ours / bare])
    return rows


def targets(tables: dict[str, Table]) -> list[list[Any]]:
    """No measurement is to exceed its limit."""
    lml, solve, plan, update = (tables[name].ms for name in ("lml", "dcem", "plan", "update"))
    small, big = (f"{shape}, forward+backward" for shape in ("1×100, k=10", "4096×1000, k=100"))
    topk, graph, fused = lml(big, "torch.topk, captured"), "dcem, captured, one graph", "fused, captured"
    goals = [
        ("LML 4096×1000 forward+backward, ratio to torch.topk", lml(big, "dcem, captured") / topk, 2.0),
        ("LML 4096×1000 forward+backward, ms: a 40th of the released", lml(big, "dcem, captured"), 9.3 / 40),
        ("LML 1×100 forward+backward, ms", lml(small, "dcem, captured"), 0.06),
        ("DCEM B=1 forward+backward, ms", solve("B=1, forward+backward", graph), 1.5),
        ("DCEM B=1024 forward+backward, ms", solve("B=1024, forward+backward", graph), 3.0),
        ("plan B=1 N=1000, ms", plan("B=1, N=1000", fused), 3.0),
        ("plan B=16 N=1000, ms", plan("B=16, N=1000", fused), 12.0),
        ("plan B=1 N=100 latent, ms", plan("B=1, N=100, latent", fused), 2.5),
    ]
    for batch in work.RELEASED_DCEM:
        case = f"B={batch}, forward+backward"
        ratio = solve(case, graph) / solve(case, "the objective alone, captured")
        goals.append((f"DCEM B={batch} forward+backward, ratio to its objective", ratio, 2.0))
    for case in dict.fromkeys(row.case for row in tables["update"].rows):
        ratio = update(case, "fast, captured") / update(case, "plain autograd, captured")
        goals.append((f"update {case}, ratio to plain autograd", ratio, 0.5))
    return [[*goal, "yes" if goal[1] <= goal[2] else "no"] for goal in goals]


def machine() -> dict[str, Any]:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    asked = subprocess.run(query, capture_output=True, text=True, check=False) if which(query[0]) else None
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "gpu": torch.cuda.get_device_name(),
        "driver": asked.stdout.strip() if asked else "unknown",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
        },
        "system": platform.platform(),
    }


if __name__ == "__main__":
    main()

"""`dcem bench`: speed, memory and correctness compared with other packages, from a checkout."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dcem_lab.commands.exits import DONE, FAILED, USAGE, UsageError
from dcem_lab.commands.parser import Parser

# Where a checkout may be: here, or around this file.
CHECKOUTS = (Path(), Path(__file__).parents[4])

_EXAMPLES = """\
  dcem bench --quick                see it work; writes to out/bench
  dcem bench --tables lml dcem      only these tables
  dcem bench                        everything, on an idle machine; writes to benchmarks/results
  dcem bench --gpu --out FOLDER     kernels, solves and planning on a CUDA device
"""


def main(arguments: Sequence[str]) -> int:
    """Run `dcem bench` with these arguments; returns the exit code, raises UsageError."""
    parser = _parser()
    given, rest = parser.parse_known_args(arguments)
    if given.help:
        print(parser.format_help())
    script = _script(Path("lab/benchmarks/gpu/run.py" if given.gpu else "benchmarks/run.py"))
    done = subprocess.run([sys.executable, str(script), *rest, *(["--help"] if given.help else [])])
    return done.returncode if done.returncode in (DONE, USAGE) else FAILED


def _script(name: Path) -> Path:
    for checkout in CHECKOUTS:
        path = (checkout / name).resolve()
        if path.exists():
            return path
    raise UsageError(
        "the benchmarks are not part of the installed package: run this in a checkout, "
        f"where {name} is; there is none in {Path.cwd()}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "bench",
        "Measure speed, memory and correctness compared with other packages. The first run installs each\n"
        "package into a separate environment in the checkout (about 1.2 GB each). benchmarks/README.md\n"
        "explains the tables. All other options are passed to the benchmark; --help lists them below.",
        _EXAMPLES,
        usage="dcem bench [--gpu] [options of the benchmark]",
        add_help=False,
    )
    parser.add_argument("--gpu", action="store_true", help="run the GPU benchmark instead")
    parser.add_argument("-h", "--help", action="store_true", help="also show the benchmark's options")
    return parser

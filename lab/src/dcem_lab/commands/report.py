"""`dcem report`: every figure and table, compared with the paper's, as one HTML page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dcem_lab.commands.exits import DONE, UsageError
from dcem_lab.commands.parser import Parser

_EXAMPLES = """\
  dcem report                             out/report.html, from the results in this checkout
  dcem report --quick out/quick           with a section on a quick run
  dcem report --results out/study/results --out out/study/report.html
"""


def main(arguments: Sequence[str]) -> int:
    """Run `dcem report` with these arguments; returns the exit code, raises UsageError."""
    given = _parser().parse_args(arguments)
    for name in ("results", "quick"):
        folder = getattr(given, name)
        if folder is not None and not folder.is_dir():
            raise UsageError(f"--{name} must be a folder, but there is no {folder}")
    from dcem_lab import study
    from dcem_lab.report.sources import Sources

    path = study.write_page(given.out, Sources(given.results, given.checkout, given.quick))
    print(f"the report: {path} ({path.stat().st_size / 1e6:.1f} MB)\nopen {path.resolve().as_uri()}")
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "report",
        "Build one HTML page with every figure and table next to the paper's.\n"
        "Sections without results show the command that produces them.",
        _EXAMPLES,
    )
    add, results, page = parser.add_argument, Path("lab/results"), Path("out/report.html")
    add("--results", type=Path, default=results, metavar="DIR", help="folder of results (%(default)s)")
    add("--quick", type=Path, metavar="DIR", help="folder of a quick reproduction to include")
    add("--out", type=Path, default=page, metavar="FILE", help="output file (%(default)s)")
    checkout = "checkout with benchmarks and docs (%(default)s)"
    add("--checkout", type=Path, default=Path(), metavar="DIR", help=checkout)
    return parser

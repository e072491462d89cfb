"""`dcem report`: every figure and table beside the paper's, as one HTML page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dcem.commands.exits import DONE, UsageError
from dcem.commands.parser import Parser

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
    path = write(given.out, given.results, given.benchmarks, given.docs, given.quick)
    print(f"the report: {path} ({path.stat().st_size / 1e6:.1f} MB)\nopen {path.resolve().as_uri()}")
    return DONE


def write(
    out: Path,
    results: Path = Path("results"),
    benchmarks: Path = Path("benchmarks"),
    docs: Path = Path("docs"),
    quick: Path | None = None,
) -> Path:
    """Write the page and return where it is."""
    try:
        from dcem.report import page
    except ModuleNotFoundError as error:
        raise UsageError(f"the module {error.name!r} is not installed; pip install 'dcem[plot]'") from error
    return page.write(out, page.Sources(results, benchmarks, docs, quick))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "report",
        "Build one HTML page with every figure and table beside the paper's.\n"
        "What has not been run yet is said on the page, with the command that runs it.",
        _EXAMPLES,
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="of the study (%(default)s)"
    )
    parser.add_argument(
        "--quick", type=Path, metavar="DIR", help="the folder of a quick run, to be shown too"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/report.html"), metavar="FILE", help="the page (%(default)s)"
    )
    parser.add_argument(
        "--benchmarks",
        type=Path,
        default=Path("benchmarks"),
        metavar="DIR",
        help="with results/cpu, gpu/results (%(default)s)",
    )
    parser.add_argument(
        "--docs", type=Path, default=Path("docs"), metavar="DIR", help="with deviations.md (%(default)s)"
    )
    return parser

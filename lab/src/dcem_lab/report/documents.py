"""Tables inside Markdown pages, rebuilt from the result files.

A page has pairs of comments, ``<!-- table NAME: begin -->`` and ``<!-- table NAME: end -->``; what is
between them is rebuilt from a table of that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from dcem_lab.report.sources import Sources

NOT_MEASURED = "not measured yet"

Rows = Iterable[dict[str, str]]
Tables = Mapping[str, Callable[[Sources], Rows]]

_BLOCK = re.compile(r"(<!-- table ([\w-]+): begin -->\n).*?(<!-- table \2: end -->)", re.DOTALL)


def rewritten(text: str, tables: Tables, sources: Sources) -> str:
    """A page with its tables rebuilt from the results."""

    def block(match: re.Match[str]) -> str:
        name = match[2]
        if name not in tables:
            raise ValueError(f"a table must be one of {', '.join(tables)}, got {name!r}")
        return f"{match[1]}\n{markdown(tables[name](sources))}\n\n{match[3]}"

    return _BLOCK.sub(block, text)


def markdown(rows: Rows) -> str:
    """
    >>> print(markdown([{"": "mass", "ours": "1.0"}]))
    |  | ours |
    | --- | --- |
    | mass | 1.0 |
    """
    found = list(rows)
    if not found:
        return f"*{NOT_MEASURED.capitalize()}.*"
    lines = [list(found[0]), ["---"] * len(found[0]), *(list(row.values()) for row in found)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

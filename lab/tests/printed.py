"""What the code blocks of a page print, beside what the page says they print.

A `text` block right after a `python` block is its output; `python -m printed PAGE …` renews it.
"""

import contextlib
import io
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

BLOCK = re.compile(r"^```python\n(.*?)^```\n(\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?")


def outputs(page: Path) -> Iterator[tuple[re.Match[str], str]]:
    """Every python block with what it prints; one main module per page, so blocks can build on others."""
    text, main = page.read_text(), ModuleType("__main__")
    for match in BLOCK.finditer(text):
        line = text[: match.start(1)].count("\n")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), _as_main(main):
            exec(compile("\n" * line + match[1], str(page), "exec"), vars(main))
        yield match, printed.getvalue()


@contextlib.contextmanager
def _as_main(module: ModuleType) -> Iterator[None]:
    """torch.compile looks globals of a function up in the module that the function names."""
    ours, sys.modules["__main__"] = sys.modules["__main__"], module
    try:
        yield
    finally:
        sys.modules["__main__"] = ours


def alike(shown: str, printed: str) -> bool:
    """The same words and, up to what another CPU may round differently, the same numbers.

    >>> alike("found 1.00 after 3", "found 1.01 after 3"), alike("error 2e-07", "error 3e-07")
    (True, True)
    >>> alike("found 1.00", "found 1.20"), alike("slope 1e-06", "slope 1e-04"), alike("True", "False")
    (False, False, False)
    """
    words, others = (NUMBER.sub("#", text).split() for text in (shown, printed))
    return words == others and all(
        _close(one, other) for one, other in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    )


def _close(shown: str, printed: str) -> bool:
    a, b = (float(text.replace(",", "")) for text in (shown, printed))
    if "e" in shown or "e" in printed:  # rounding errors and the like: their size
        return a == b or (a * b > 0 and abs(math.log10(a / b)) <= 0.5)
    digits = len(shown.partition(".")[2])
    return abs(a - b) <= max(2.5 * 10**-digits if digits else 0.0, 0.03 * abs(a))


def renewed(page: Path) -> str:
    """The page with its outputs as they are printed now, where these are not alike."""
    text = page.read_text()
    for match, printed in reversed(list(outputs(page))):
        if match[2] and not alike(match[3], printed):
            text = text[: match.start(3)] + printed + text[match.end(3) :]
    return text


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        try:
            path.write_text(renewed(path))
        except ModuleNotFoundError as error:  # a page about a framework that is not installed
            print(f"{path}: left as it is: {error}")

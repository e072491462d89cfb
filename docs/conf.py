"""Sphinx builds the pages of the library and of the lab: python -m sphinx -W -b html -c docs . out/docs"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))  # the docstrings of this checkout

project = "dcem"
author = "the dcem authors"
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

# The sources are the whole checkout, so that links between the two lead the same way here and on disk.
root_doc = "docs/index"
include_patterns = ["docs/**", "lab/docs/**"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "dcem"
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["tables.css"]

default_role = "code"  # docstrings write `name` for code
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False


def plain_text(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are written to be read in a terminal: keep their formulas, and no symbol is markup."""
    section, previous = False, ""
    text: list[str] = []
    for line in lines:
        if re.fullmatch(r"(Args|Attributes|Returns|Raises):", line):
            section = True
        elif line and not line.startswith(" "):
            section = False
        indented = line.startswith("    ") and not section
        if indented and not previous.strip():  # a formula or a snippet: a literal block
            text += ["::", ""]
        quoted = indented or line.lstrip().startswith((">>>", "..."))
        text.append(line if quoted else re.sub(r"([*|])", r"\\\1", line))
        # Lines of a block that was opened above need no second marker.
        previous = "inside" if indented else line
    lines[:] = text


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", plain_text, priority=400)  # before napoleon reads them

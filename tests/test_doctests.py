"""Every example in a docstring of the core, and every Python block of the README and the docs, runs."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

import dcem

ROOT = Path(__file__).parents[1]
CORE = [
    "minimize",
    "backward",
    "noise",
    "topk",
    "distributions",
    "solvers",
    "argmin",
    "capture",
    "control",
    "models",
]
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))] if page.exists()]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def core_modules() -> list[str]:
    names = []
    for name in CORE:
        module = importlib.import_module(f"dcem.{name}")
        names.append(module.__name__)
        if hasattr(module, "__path__"):
            names += [info.name for info in pkgutil.iter_modules(module.__path__, f"{module.__name__}.")]
    return [name for name in names if not name.endswith(("_triton", "_kernels"))]  # these need a GPU


def examples(module: ModuleType) -> list[doctest.DocTest]:
    """The docstring examples of a module, with torch and the public names at hand as in a user's session."""
    names = {"torch": torch, "dcem": dcem} | {name: getattr(dcem, name) for name in dcem.__all__}
    found = doctest.DocTestFinder().find(module, extraglobs=names | vars(module))
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", core_modules())
def test_docstring_examples(name):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in examples(importlib.import_module(name)):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_the_public_functions_have_an_example():
    assert examples(importlib.import_module("dcem.minimize"))
    assert examples(importlib.import_module("dcem.topk.lml"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks(page, tmp_path, monkeypatch):
    """One namespace a page, so that a block can build on the ones before it."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    namespace: dict[str, object] = {"__name__": "__main__"}
    for match in BLOCK.finditer(text):
        line = text[: match.start(1)].count("\n")
        code = compile("\n" * line + match.group(1), str(page), "exec")
        exec(code, namespace)

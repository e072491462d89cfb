"""Every example in a docstring runs."""

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest
import torch

import dcem

MODULES = [
    info.name
    for info in pkgutil.walk_packages(dcem.__path__, "dcem.")
    if not info.name.endswith("_triton")  # these need a GPU
]


def examples(module: ModuleType) -> list[doctest.DocTest]:
    """The docstring examples of a module, with torch and the public names at hand as in a user's session."""
    names = {"torch": torch, "dcem": dcem} | {name: getattr(dcem, name) for name in dcem.__all__}
    found = doctest.DocTestFinder().find(module, extraglobs=names | vars(module))
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in examples(importlib.import_module(name)):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_the_public_functions_have_an_example():
    assert examples(importlib.import_module("dcem._minimize"))
    assert examples(importlib.import_module("dcem.topk.lml"))

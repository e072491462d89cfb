"""What the GPU benchmark switches on and off, where there is neither a GPU nor Triton."""

import importlib
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from dcem.distributions import fused

FOLDER = Path(__file__).parents[1] / "benchmarks" / "gpu"


@pytest.fixture
def script(monkeypatch):
    """One of its modules by name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setitem(sys.modules, "dcem_lab.suite.rssm.fast.rollout_triton", MagicMock())
    yield importlib.import_module
    for name in ("work", "clock", "pages", "run"):
        sys.modules.pop(name, None)


def test_the_soft_topk_is_measured_without_its_kernel_too(script, monkeypatch):
    module = importlib.import_module("dcem.topk.lml")
    monkeypatch.setattr(module, "fused", "a kernel")
    with script("work").plain_lml():
        assert module.fused is None
    assert module.fused == "a kernel"


def test_solves_are_measured_without_their_fused_kernels_too(script):
    before = fused.DEVICES
    with script("work").separate():
        assert fused.DEVICES == ()
    assert fused.DEVICES == before == ("cuda",)


def test_the_overhead_is_that_of_a_solve_with_them_and_without(script, monkeypatch):
    work, pages = script("work"), script("pages")
    monkeypatch.setitem(sys.modules, "triton", MagicMock())  # whose version is written down
    times = {"dcem, captured": 2.0, work.SEPARATE: 4.0, "the objective alone, captured": 1.0}
    rows = [pages.Row("B=1, forward", what, ms, 1.0) for what, ms in times.items()]
    found = script("run").overhead(pages.Table("dcem", "", "", rows))
    assert [(row[1], row[-1]) for row in found] == [("dcem, captured", 2.0), (work.SEPARATE, 4.0)]

"""Networks of critics and actors on the CPU in C++ equal plain torch, and so do their gradients."""

from __future__ import annotations

import pytest
import torch

from dcem_lab.suite.rssm.fast import native
from toy.networks import SIZES, EqualsPlainTorch, Sizes, exact, far, make, recorded, results

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    return recorded(monkeypatch)


class TestNative(EqualsPlainTorch):
    no_kernel = ((2, 3, 4, 37, 1), (2, 0, 4, 64, 1))

    def switch_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(native, "library", lambda: None)  # as without a compiler

    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.parametrize("frozen", [False, True])
    @pytest.mark.parametrize("sizes", [*SIZES, (2, 70, 49, 16, 50), (5, 256, 23, 128, 1)], ids=str)
    def test_values_and_gradients(
        self, sizes: Sizes, frozen: bool, threads: int, calls: list[object]
    ) -> None:
        net, x = make(sizes)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            found = results(net, x.requires_grad_(), frozen)
        finally:
            torch.set_num_threads(before)
        assert far(found, results(*exact(net, x), frozen)) < self.near
        assert len(calls) == 1

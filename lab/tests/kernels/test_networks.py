"""The fused kernels of critics and actors equal plain torch, by Triton's interpreter."""

import os

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from dcem_lab.suite.rssm.fast import mlp, mlp_triton
from toy.networks import SIZES, EqualsPlainTorch, Sizes, exact, far, make, recorded, results

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1, see make test-kernels"
)


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """CPU tensors are taken through these kernels, and none through those in C++."""
    monkeypatch.setattr(mlp_triton, "DEVICES", ("cpu",))
    monkeypatch.setattr(mlp, "mlp_native", None)
    return recorded(monkeypatch)


class TestTriton(EqualsPlainTorch):
    no_kernel = ((2, 3, 4, 32, 1), (2, 3, 4, 64, 129), (2, 0, 4, 64, 1))

    def switch_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mlp_triton, "DEVICES", ())

    @pytest.mark.parametrize("frozen", [False, True])
    @pytest.mark.parametrize("sizes", SIZES, ids=str)
    def test_values_and_gradients(self, sizes: Sizes, frozen: bool, calls: list[object]) -> None:
        net, x = make(sizes)
        x.requires_grad_()
        assert far(results(net, x, frozen), results(*exact(net, x), frozen)) < self.near
        assert len(calls) == 1

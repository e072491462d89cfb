"""The fused kernels of critics and actors equal plain torch, by Triton's interpreter."""

import copy
import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from dcem_lab.suite.agents import ValueConfig
from dcem_lab.suite.rssm.fast import mlp, mlp_triton
from dcem_lab.training import descent_triton
from dcem_lab.training.descent import descent
from toy.networks import SIZES, EqualsPlainTorch, Sizes, at_bounds, exact, far, make, recorded, results

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
    whole_update = ("scalar",)
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


@pytest.mark.parametrize(("bound", "steps", "terminates"), [(None, 3, False), (0.5, 1, True)])
def test_gradients_of_a_whole_update(
    bound: float | None, steps: int, terminates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of critics and actor with three actions, where some values and actions are at their bounds."""
    found, named = [], []
    for devices in (("cpu",), ()):
        monkeypatch.setattr(mlp_triton, "DEVICES", devices)
        fit = at_bounds("scalar", bound=bound, steps=steps, terminates=terminates, calm=0.1)
        fit._draw()
        assert (fit._kernels is None) == (devices == ())
        gradients, metrics = fit.gradients()
        found.append([*gradients, *metrics.values()])
        named.append([*metrics])
        assert fit._next == 1
    assert far(*found) < 2e-6
    assert named[0] == named[1]


@pytest.mark.parametrize("fused_first", [True, False])
@pytest.mark.parametrize("clip", [0.1, 100.0])
def test_gradient_steps_and_what_they_remember(
    clip: float, fused_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of what was remembered by the other way of taking them."""
    shapes = [(3, 7, 50), (1,), (130, 64)]
    generator = torch.Generator().manual_seed(0)
    begin = [torch.randn(shape, generator=generator) for shape in shapes]
    gradients = [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(6)]
    config = ValueConfig(lr=1e-2, clip=clip, average=0.9)
    ways, states = [], []
    for fused in (fused_first, not fused_first):
        monkeypatch.setattr(descent_triton, "DEVICES", ("cpu",) if fused else ())
        weights, averages = ([t.clone() for t in begin] for _ in range(2))
        found, steps = [], descent(weights, averages, config, 1e-8)
        for i, gradient in enumerate(gradients):
            if i == 3:
                states.append(copy.deepcopy(steps.state_dict()))
                steps = descent(weights, averages, config, 1e-8)
                steps.load_state_dict(copy.deepcopy(states[0]))
            norm = steps.step([g.clone() for g in gradient])
            found.append(torch.cat([norm.view(1), *(t.flatten() for t in (*weights, *averages))]))
        ways.append(found)
    assert far(*ways) < 1e-6
    for i, saved in states[0].items():
        assert saved["step"] == 3
        for name in ("exp_avg", "exp_avg_sq"):
            assert far([saved[name]], [states[1][i][name]]) < 1e-5


def test_a_gradient_that_is_not_a_number_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descent_triton, "DEVICES", ("cpu",))
    weights, averages = [torch.ones(3)], [torch.ones(3)]
    norm = descent(weights, averages, ValueConfig(), 1e-8).step([torch.tensor([1.0, torch.nan, 0.0])])
    assert norm.isnan()
    assert weights[0].isnan().all()

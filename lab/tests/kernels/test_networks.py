"""The fused kernels of critics and actors equal plain torch, by Triton's interpreter."""

import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from dcem_lab.suite.rssm.fast import mlp, mlp_triton
from dcem_lab.suite.rssm.nets import EnsembleMLP
from toy.networks import SIZES, Sizes, exact, far, learner, make, results

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1, see make test-kernels"
)
NEAR = 2e-6


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """How often networks were taken through these kernels. CPU tensors are, and none through those in C++."""
    seen: list[object] = []
    apply = mlp.normed_network
    monkeypatch.setattr(mlp_triton, "DEVICES", ("cpu",))
    monkeypatch.setattr(mlp, "mlp_native", None)
    monkeypatch.setattr(mlp, "normed_network", lambda *given: seen.append(given) or apply(*given))
    return seen


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_values_and_gradients(sizes: Sizes, frozen: bool, calls: list[object]) -> None:
    net, x = make(sizes)
    x.requires_grad_()
    assert far(results(net, x, frozen), results(*exact(net, x), frozen)) < NEAR
    assert len(calls) == 1


def test_gradients_of_weights_alone_and_of_some(calls: list[object]) -> None:
    net, x = make(SIZES[0])
    assert far(results(net, x), results(*exact(net, x))) < NEAR
    net.requires_grad_(False).weights[1].requires_grad_()
    assert far(results(net, x), results(*exact(net, x))) < NEAR
    assert len(calls) == 2


def test_inputs_that_members_share_and_that_are_not_in_a_row(calls: list[object]) -> None:
    net, x = make(SIZES[0])
    shared = x[0].expand_as(x).requires_grad_()
    apart = x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    padded = torch.cat([x, x], dim=-1)[..., : x.shape[-1]].requires_grad_()
    for given in (shared, apart, padded):
        assert far(results(net, given), results(*exact(net, given))) < NEAR
    with torch.no_grad():
        assert far([net(x)], [exact(net, x)[0](x.double())]) < NEAR
    assert len(calls) == 4


def test_second_derivatives(calls: list[object]) -> None:
    """Also of the gradient that arrives from above, and where x depends on the weights."""
    net, x = make((2, 9, 5, 64, 3))
    found = []
    for network, given in ((net, x.requires_grad_()), exact(net, x.requires_grad_())):
        inputs = given * (1 + network.biases[0].mean())
        (slope,) = torch.autograd.grad(network(inputs).square().sum(), given, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), [given, *network.in_a_row]))
    assert far(*found) < 10 * NEAR
    assert len(calls) == 1


def test_what_has_no_kernel_is_plain(calls: list[object]) -> None:
    for sizes in ((2, 3, 4, 32, 1), (2, 3, 4, 64, 129), (2, 0, 4, 64, 1)):
        net, x = make(sizes)
        net(x)
    net, x = make((2, 3, 4, 64, 1))
    net.double()(x.double())
    EnsembleMLP([4, 64, 1], None, 2)(x)
    EnsembleMLP([4, 64, 64, 1], "relu", 2)(x)
    net.float()
    with torch.autocast("cpu", torch.bfloat16):
        net(x)
    slope = torch.func.grad(lambda x: net(x).sum())(x)
    assert not calls
    (expected,) = torch.autograd.grad(net(x.requires_grad_()).sum(), x)
    assert len(calls) == 1
    torch.testing.assert_close(slope, expected)


@pytest.mark.parametrize("values", ["scalar", "two-hot"])
def test_an_update_of_critics_and_actor(
    values: str, calls: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for devices in (("cpu",), ()):
        monkeypatch.setattr(mlp_triton, "DEVICES", devices)
        fit = learner(values)
        fit.update()
        found.append([*(p.grad for p in fit.value.parameters()), torch.tensor(list(fit.metrics().values()))])
    assert far(*found) < 20 * NEAR
    assert len(calls) == 5  # actor and critics, those of the averages, and the critics for the actor

"""The fused kernels of critics and actors on the tensor cores: exact, captured, the same in every run."""

from collections.abc import Iterator

import pytest
import torch

from toy.networks import SIZES, Sizes, at_bounds, exact, far, make, recorded, results

pytestmark = pytest.mark.gpu
LARGE: Sizes = (5, 512, 80, 256, 101)  # as in training
NEAR = {"highest": 1e-5, "high": 5e-3}


@pytest.fixture(autouse=True, params=NEAR)
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    from dcem_lab.suite.rssm.fast import mlp_triton

    monkeypatch.setattr(mlp_triton, "DEVICES", ("cuda",))
    return recorded(monkeypatch)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("sizes", [*SIZES, LARGE, (1, 512, 67, 256, 21)], ids=str)
def test_values_and_gradients(sizes: Sizes, frozen: bool, precision: str, calls: list[object]) -> None:
    net, x = make(sizes, "cuda")
    x.requires_grad_()
    assert far(results(net, x, frozen), results(*exact(net, x), frozen)) < NEAR[precision]
    assert len(calls) == 1


def test_inputs_that_members_share_and_that_are_not_in_a_row(precision: str) -> None:
    net, x = make(SIZES[0], "cuda")
    padded = torch.cat([x, x], dim=-1)[..., : x.shape[-1]]
    for given in (x[0].expand_as(x), x.transpose(1, 2).contiguous().transpose(1, 2), padded):
        given = given.requires_grad_()
        assert far(results(net, given), results(*exact(net, given))) < NEAR[precision]


@pytest.mark.parametrize("sizes", [LARGE, (5, 512, 23, 256, 1), (1, 511, 67, 256, 21), (2, 100, 5, 64, 1)])
def test_two_runs_are_equal_in_every_bit_and_so_is_a_captured_one(sizes: Sizes) -> None:
    net, x = make(sizes, "cuda")
    x.requires_grad_()
    expected = results(net, x)
    for _ in range(20):
        assert all(map(torch.equal, results(net, x), expected))
    above = torch.randn(expected[0].shape, generator=torch.Generator().manual_seed(2)).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = net(x)
        captured = [out.detach(), *torch.autograd.grad(out, [x, *net.in_a_row], above)]
    del out  # its nodes belong to the stream of the capture
    for scale in (1.0, 0.7):
        with torch.no_grad():
            for t in (x, *net.in_a_row):
                t.mul_(scale)
        graph.replay()
        assert all(map(torch.equal, captured, results(net, x)))


@pytest.mark.parametrize("values", ["scalar", "two-hot"])
def test_updates_are_those_of_plain_torch(
    values: str, precision: str, calls: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients of one, and where six lead, of which the last are captured."""
    from dcem_lab.suite.rssm.fast import mlp_triton
    from dcem_lab.training import descent_triton

    gradients, ways = [], []
    for devices in (("cuda",), ()):
        monkeypatch.setattr(mlp_triton, "DEVICES", devices)
        monkeypatch.setattr(descent_triton, "DEVICES", devices)
        fit = at_bounds(values, "cuda", width=256, batch=512, bound=0.5)
        assert (fit._kernels is None) == (devices == () or values == "two-hot")
        fit._draw()
        gradients.append([g.clone() for g in fit.gradients()[0]])
        fit = at_bounds(values, "cuda", width=256, batch=512, bound=0.5)
        begin = [p.detach().clone() for p in fit.value.parameters()]
        for _ in range(6):
            fit.update()
        ways.append([p.detach() - b for p, b in zip(fit.value.parameters(), begin, strict=True)])
        fit.metrics()
    assert bool(calls) == (values == "two-hot")  # scalar ones have kernels for all of an update
    assert far(*gradients) < 4 * NEAR[precision]
    # The sizes of Adam's first steps are equal, also those of gradients that are rounding.
    assert far(*ways) < {"highest": 1e-3, "high": 0.1}[precision]

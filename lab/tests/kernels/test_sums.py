"""The kernels for gradients of fully connected layers equal sums in float64, by Triton's interpreter."""

import os

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from dcem_lab.suite.rssm.fast import sums_triton
from dcem_lab.suite.rssm.fast.sums_triton import fits, layer_gradients
from toy.networks import far

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1, see make test-kernels"
)
SIZES = [  # members, rows, inputs and outputs
    (2, 300, 65, 129),  # one more than tiles have, in both directions
    (1, 1031, 37, 24),  # several parts
    (1, 2600, 4, 2),  # more parts than are read at a time
    (3, 515, 20, 1),
    (2, 130, 1, 80),
    (1, 1, 1, 1),
    (5, 64, 33, 64),
]


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums_triton, "DEVICES", ("cpu",))


def rows(M: int, R: int, wide: int, seed: int) -> Tensor:
    return torch.randn(M, R, wide, generator=torch.Generator().manual_seed(seed)).half()


def inner(M: int, R: int, wide: int, seed: int, left: int = 3) -> Tensor:
    """A slice of more members with more and longer rows: whatever else is there is not a number."""
    around = torch.full((M + 2, R + 70, left + wide + 5), torch.nan, dtype=torch.float16)
    inside = around[1:-1, 2 : R + 2, left : left + wide]
    inside.copy_(rows(M, R, wide, seed))
    return inside


def exact(x: Tensor, grad: Tensor) -> list[Tensor]:
    return [x.double().mT @ grad.double(), grad.double().sum(1)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sums_over_rows(sizes: tuple[int, ...]) -> None:
    M, R, i, o = sizes
    x, grad = rows(M, R, i, 0), rows(M, R, o, 1)
    assert fits(x, grad)
    found = layer_gradients(x, grad, 1.0)
    assert far(found, exact(x, grad)) < 2e-6
    assert all(t.dtype == torch.float32 and t.is_contiguous() for t in found)


@pytest.mark.parametrize("left", [3, 8])
@pytest.mark.parametrize("sizes", SIZES[:5], ids=str)
def test_slices_are_read_where_they_are_and_nothing_beside_them(sizes: tuple[int, ...], left: int) -> None:
    M, R, i, o = sizes
    x, grad = inner(M, R, i, 0, left), inner(M, R, o, 1, left)
    assert fits(x, grad)
    assert far(layer_gradients(x, grad, 1.0), exact(x, grad)) < 2e-6


def test_members_may_share_rows() -> None:
    x, grad = rows(1, 100, 7, 0).expand(3, -1, -1), rows(3, 100, 5, 1)
    assert far(layer_gradients(x, grad, 1.0), exact(x, grad)) < 2e-6


def test_scale() -> None:
    x, grad = rows(2, 600, 9, 0), rows(2, 600, 11, 1)
    found, scaled = (layer_gradients(x, grad, scale) for scale in (1.0, 2.0**-12))
    assert all(torch.equal(a * 2.0**-12, b) for a, b in zip(found, scaled, strict=True))


def test_two_calls_are_equal_in_every_bit() -> None:
    x, grad = inner(2, 1100, 40, 0), inner(2, 1100, 70, 1)
    calls = [layer_gradients(x, grad, 0.3) for _ in range(2)]
    assert all(map(torch.equal, *calls))


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_row_or_column(bad: float) -> None:
    x, grad = rows(2, 700, 70, 0), rows(2, 700, 140, 1)
    x[1, 699, 66] = bad
    grad[0, 5, 131] = bad
    weight, bias = layer_gradients(x, grad, 1.0)
    of_weight, of_bias = torch.zeros(2, 70, 140).bool(), torch.zeros(2, 140).bool()
    of_weight[1, 66] = of_weight[0, :, 131] = of_bias[0, 131] = True
    assert torch.equal(~weight.isfinite(), of_weight)
    assert torch.equal(~bias.isfinite(), of_bias)


@pytest.mark.parametrize("rows", [1, 255, 800, 2048, 2500, 5000])
@pytest.mark.parametrize("tiles", [1, 4, 50, 100, 200, 300])
def test_parts_are_long_and_all_rows_are_in_one(rows: int, tiles: int) -> None:
    of_a_part, parts = sums_triton._parts(rows, tiles, 64)
    assert of_a_part % 64 == 0
    assert (parts - 1) * of_a_part < rows <= parts * of_a_part
    assert parts == 1 or (of_a_part >= 256 and parts * tiles <= 264)
    if rows >= 2048 and tiles > 16:
        assert parts * tiles >= 132


def test_others_have_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    x, grad = rows(2, 8, 4, 0), rows(2, 8, 6, 1)
    assert fits(x, grad)
    assert not fits(x, grad.float())
    assert not fits(x.float(), grad.float())
    assert not fits(x.bfloat16(), grad.bfloat16())
    assert not fits(x[:, :0], grad[:, :0])
    assert not fits(x[..., :0], grad)
    assert fits(x[..., ::4], grad)  # one column
    assert not fits(x[..., ::2], grad)
    assert not fits(x, grad.mT.contiguous().mT)
    monkeypatch.setattr(sums_triton, "DEVICES", ("meta",))
    grad, wide = grad.to("meta"), torch.empty(2, 2**30, dtype=torch.float16, device="meta")
    assert fits(wide.as_strided((2, 8, 4), (2**30, 2**24, 1)), grad)
    assert not fits(wide.as_strided((2, 8, 4), (2**30, 2**26, 1)), grad)
    monkeypatch.setattr(sums_triton, "DEVICES", ())
    assert not fits(x, x)

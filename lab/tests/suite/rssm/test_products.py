"""Products of every member's matrices, in C++ where there is a compiler."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dcem_lab.suite.rssm.fast import native, products
from dcem_lab.suite.rssm.fast.products import add_product, affine, product, transposed

SIZES = [(1, 1, 1, 1), (3, 65, 257, 49), (2, 130, 24, 384), (3, 7, 600, 1), (2, 128, 1000, 16), (2, 5, 0, 3)]


@pytest.fixture(autouse=True, params=["kernels", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the kernels were called with, if there are any."""
    seen: list[object] = []
    if request.param == "torch":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("no C++ compiler")
    multiply = products._multiply
    monkeypatch.setattr(
        products, "_multiply", lambda *given, **more: seen.append(given) or multiply(*given, **more)
    )
    return seen


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


def layouts(x: Tensor) -> list[Tensor]:
    """The same numbers: in a row, columns first, as a part of longer rows, and the same for all members."""
    wide = torch.cat([x, x], dim=-1)
    shared = x[:1].expand_as(x)
    return [x, x.mT.contiguous().mT, wide[..., : x.shape[-1]], shared]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_product_is_that_of_float64(sizes: tuple[int, ...], kernels: list[object]) -> None:
    M, rows, inputs, outputs = sizes
    weight, bias = normal(M, inputs, outputs, seed=1), normal(M, outputs, seed=2)
    wide_weight = torch.cat([weight, weight], dim=-1)[..., :outputs]
    for x in layouts(normal(M, rows, inputs)):
        exact = x.double() @ weight.double()
        near(product(x, weight), exact)
        near(product(x, wide_weight), exact)
        near(product(x, transposed(weight.mT)), exact)
        near(product(x, weight.mT.contiguous().mT), exact)
        for room in (torch.zeros(M, rows, outputs), torch.zeros(M, rows, 2 * outputs)[..., :outputs]):
            near(affine(bias, x, weight, room.fill_(torch.nan)), exact + bias.double().unsqueeze(1))
            before = room.fill_(0.5).double()
            assert add_product(room, x, weight) is room
            near(room, before + exact)


def test_what_the_kernels_do_not_know_is_left_to_torch(kernels: list[object]) -> None:
    x, weight = normal(2, 5, 3), normal(2, 3, 4)
    torch.testing.assert_close(product(x.double(), weight.double()), x.double() @ weight.double())
    out = torch.zeros(2, 4, 5).mT
    add_product(out, x, weight)
    torch.testing.assert_close(out, x @ weight)
    assert not kernels


def test_only_what_is_meant_is_written(kernels: list[object]) -> None:
    room = torch.zeros(3, 10, 40)
    affine(normal(3, 17), normal(3, 8, 9), normal(3, 9, 17), room[:, 1:9, 5:22])
    room[:, 1:9, 5:22] = 0
    assert not room.any()


def test_threads_make_no_difference(kernels: list[object]) -> None:
    x, weight = normal(3, 700, 300), normal(3, 300, 90)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(product(x, weight))
    finally:
        torch.set_num_threads(threads)
    if kernels:
        assert torch.equal(*found)
    near(found[0], x.double() @ weight.double())

"""The unrolled world model with its fused steps, against plain autograd."""

import pytest
import torch
from torch import Tensor

import dcem
from dcem_lab.suite.rssm import RSSM, RSSMConfig, multistep_loss

pytestmark = pytest.mark.gpu

RECIPES = {
    "paper": {},
    "paper, means": {"sample": False},
    "best": {
        "activation": "gelu", "residual": True, "normalize": True, "angles": (1,), "predict_std": False,
        "sample": False, "loss": "rmse", "members": 3, "pessimism": 0.5,
    },
    "noisy": {"activation": "elu", "members": 2, "residual": True},
    "linear heads": {"layers": 0, "members": 2},
}  # fmt: skip
SIZES = {  # hidden, width, distance, chunks, length
    "even": (32, 24, 4, 8, 12),
    "odd": (7, 5, 3, 3, 5),
    "one step": (16, 8, 1, 2, 4),
    "many rows": (40, 40, 6, 50, 20),
}


def make(recipe: str, size: str, dtype: torch.dtype) -> tuple[RSSM, tuple[Tensor, Tensor, Tensor]]:
    hidden, width, distance, chunks, length = SIZES[size]
    config = RSSMConfig(hidden=hidden, width=width, distance=distance, **RECIPES[recipe])
    model = RSSM(5, 2, config, torch.Generator().manual_seed(0)).to("cuda", dtype)
    shapes = [(chunks, length + 1, 5), (chunks, length, 2), (chunks, length)]
    obs, actions, rewards = (torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes)
    model.normalizer.update(obs)
    return model, (obs, actions, rewards)


def loss_and_gradients(
    model: RSSM, data: tuple[Tensor, ...], fast: bool, dtype: torch.dtype | None = None
) -> tuple[Tensor, ...]:
    generator = torch.Generator("cuda").manual_seed(1)
    loss, _ = multistep_loss(model, *data, generator=generator, fast=fast, dtype=dtype)
    return loss, *torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("size", SIZES)
def test_same_gradients_as_autograd(recipe: str, size: str) -> None:
    model, data = make(recipe, size, torch.float64)
    fast, plain = (loss_and_gradients(model, data, fast) for fast in (True, False))
    torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("recipe", RECIPES)
def test_single_precision(recipe: str) -> None:
    model, data = make(recipe, "many rows", torch.float32)
    fast, plain = (loss_and_gradients(model, data, fast) for fast in (True, False))
    for got, expected in zip(fast, plain, strict=True):
        assert ((got - expected).norm() / expected.norm()).item() < 1e-4


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("size", ["odd", "many rows"])
def test_half_precision(recipe: str, size: str) -> None:
    model, data = make(recipe, size, torch.float32)
    half, plain = (
        loss_and_gradients(model, data, fast, dtype) for fast, dtype in ((True, torch.float16), (False, None))
    )
    for got, expected in zip(half, plain, strict=True):
        assert ((got - expected).norm() / expected.norm()).item() < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_leftovers_in_memory_do_not_matter(dtype: torch.dtype) -> None:
    model, data = make("best", "many rows", torch.float32)
    expected = loss_and_gradients(model, data, True, dtype)
    junk = torch.full((1 << 24,), torch.nan, device="cuda")
    del junk  # the buffers come out of it
    got = loss_and_gradients(model, data, True, dtype)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_captured_updates_see_new_data_and_weights() -> None:
    model, data = make("best", "even", torch.float64)
    parameters = list(model.parameters())

    def update(*data: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            loss, _ = multistep_loss(model, *data)
            return loss.detach(), *torch.autograd.grad(loss, parameters)

    captured = dcem.capture(update)
    for _ in range(3):
        data = tuple(torch.randn_like(x) for x in data)
        torch.testing.assert_close(captured(*data), update(*data), rtol=1e-9, atol=1e-9)
        with torch.no_grad():
            for parameter in parameters:
                parameter.mul_(0.9)

"""Normal, antithetic and Sobol noise."""

import math

import pytest
import torch
from scipy.stats import kstest

from dcem.noise import Antithetic, Colored, Normal, Sobol

NOISES = [Normal(), Antithetic(), Sobol()]
ids = [type(noise).__name__ for noise in NOISES]


@pytest.mark.parametrize("noise", NOISES, ids=ids)
@pytest.mark.parametrize("shape", [(5, 2), (1, 1), (3, 8, 2), (2, 3, 7, 1), (0, 4, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_shape_and_dtype(noise, shape, dtype):
    epsilon = noise.draw(shape, torch.zeros(1, dtype=dtype), None)
    assert epsilon.shape == shape and epsilon.dtype == dtype and epsilon.isfinite().all()


@pytest.mark.parametrize("noise", NOISES, ids=ids)
def test_is_standard_normal(noise, generator):
    epsilon = noise.draw((2, 4096, 3), torch.zeros(1, dtype=torch.float64), generator)
    tolerance = 5 / math.sqrt(4096)
    assert (epsilon.mean(-2)).abs().max() < tolerance
    assert (epsilon.std(-2) - 1).abs().max() < tolerance
    for column in epsilon.reshape(2, 4096, 3).unbind(-1):
        assert kstest(column[0].numpy(), "norm").pvalue > 1e-3
    for row in epsilon:
        assert (row.T.cov() - torch.eye(3)).abs().max() < 0.1


def test_antithetic_pairs_cancel(generator):
    epsilon = Antithetic().draw((4, 10, 3), torch.zeros(1, dtype=torch.float64), generator)
    assert torch.equal(epsilon[:, :5], -epsilon[:, 5:])
    assert epsilon.sum(-2).abs().max() < 1e-14
    odd = Antithetic().draw((7, 3), torch.zeros(1), generator)
    assert torch.equal(odd[:3], -odd[4:])


def test_sobol_covers_space_more_evenly_than_independent_draws(generator):
    """The mean over 256 points, a measure of evenness, over 200 rows."""
    like = torch.zeros(1, dtype=torch.float64)
    even = Sobol().draw((200, 256, 2), like, generator).mean(-2).abs().mean()
    independent = Normal().draw((200, 256, 2), like, generator).mean(-2).abs().mean()
    assert even < independent / 5


def test_sobol_rows_differ(generator):
    epsilon = Sobol().draw((3, 16, 2), torch.zeros(1), generator)
    assert not torch.allclose(epsilon[0], epsilon[1])


@pytest.mark.parametrize("noise", NOISES, ids=ids)
def test_the_generator_is_the_only_source(noise):
    like = torch.zeros(1)
    first, second = (noise.draw((8, 2), like, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, noise.draw((8, 2), like, torch.Generator().manual_seed(4)))
    before = torch.get_rng_state()
    noise.draw((8, 2), like, torch.Generator())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("noise", NOISES, ids=ids)
def test_without_a_generator_the_global_seed_decides(noise):
    like = torch.zeros(1)
    torch.manual_seed(1)
    first = noise.draw((8, 2), like, None)
    torch.manual_seed(1)
    assert torch.equal(first, noise.draw((8, 2), like, None))


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("horizon", [1, 5, 12, 50])
def test_colored_noise_has_unit_variance_at_every_step(beta, horizon, generator):
    shape = (4000, 2 * horizon)
    epsilon = Colored(beta, horizon).draw(shape, torch.zeros(1, dtype=torch.float64), generator)
    assert epsilon.shape == shape
    assert (epsilon.std(0) - 1).abs().max() < 0.08
    assert epsilon.mean(0).abs().max() < 0.08


def test_colored_noise_is_correlated_over_time_and_not_over_actions(generator):
    def correlation(beta: float) -> torch.Tensor:
        epsilon = Colored(beta, 10).draw((4000, 30), torch.zeros(1, dtype=torch.float64), generator)
        return torch.corrcoef(epsilon.T).reshape(10, 3, 10, 3)  # step, action, step, action

    between_steps = [correlation(beta)[4, 0, 5, 0].item() for beta in (0.0, 1.0, 2.0, 4.0)]
    assert abs(between_steps[0]) < 0.06
    assert between_steps == sorted(between_steps) and between_steps[-1] > 0.9
    assert correlation(2.0)[4, 0, 4, 1].abs() < 0.06


def test_colored_noise_depends_on_its_generator_alone():
    like, noise = torch.zeros(1), Colored(1.0, 4)
    first, second = (noise.draw((3, 5, 8), like, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


def test_bad_colored_noise_says_what_is_wrong():
    with pytest.raises(ValueError, match=r"^Colored: beta must be >= 0, got -1.0"):
        Colored(-1.0, 5)
    with pytest.raises(ValueError, match=r"^Colored: horizon must divide the number of dimensions 7, got 5"):
        Colored(1.0, 5).draw((10, 7), torch.zeros(1), None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("beta", [0.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("horizon", [12, 100])
def test_coloured_noise_has_unit_variance_however_smooth_it_is(beta, horizon, dtype):
    drawn = Colored(beta, horizon).draw((4000, horizon), torch.zeros(1, dtype=dtype), None)
    assert drawn.dtype == dtype
    deviation = drawn.double().std(0)
    assert ((deviation - 1).abs() < 0.1).all()
